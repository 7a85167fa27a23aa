"""PyTorch over this package: a DataLoader of a reader, and a network trained from Loader."""
import importlib.util
import json
import os

import numpy as np

import bags
from run import Skip, python

# Ten lines of it are those of README.md; the rest keeps the losses and kills.
TRAINING = '''if True:
    import json, os, signal, sys
    import bags, torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loader = bags.Loader('x', batch=16, seed=1)
    epoch, losses = 0, []
    if os.path.exists('state'):
        state = torch.load('state')
        net.load_state_dict(state['net'])
        sgd.load_state_dict(state['sgd'])
        loader.load_state_dict(state['loader'])
        epoch, losses = state['epoch'], state['losses']
    while epoch < 2:
        for batch in loader:
            loss = nn.functional.cross_entropy(
                net(torch.from_numpy(batch['image'])), torch.from_numpy(batch['label']).long())
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(loss.item())
            torch.save({'net': net.state_dict(), 'sgd': sgd.state_dict(), 'epoch': epoch,
                        'loader': loader.state_dict(), 'losses': losses}, 'new')
            os.rename('new', 'state')
            if len(losses) == int(sys.argv[1]):
                os.kill(os.getpid(), signal.SIGKILL)
        epoch += 1
    print(json.dumps(losses))
    os.unlink('state')
'''

WORKERS = '''if True:
    import sys
    import bags, torch
    from torch.utils.data import DataLoader

    reader = bags.DatasetReader('x')
    reader[0]  # the parent uses it, too
    loader = DataLoader(reader, batch_size=16, shuffle=True, num_workers=4,
                        multiprocessing_context=sys.argv[1])
    for epoch in range(int(sys.argv[2])):
        seen = []
        for batch in loader:
            assert batch['image'].shape[1:] == (1, 8, 8), batch['image'].shape
            assert torch.equal(batch['image'][:, 0, 0, 0].long(), batch['number'])
            seen += batch['number'].tolist()
        assert sorted(seen) == list(range(200)), len(seen)
'''


def _write():
    if not importlib.util.find_spec('torch'):
        raise Skip('python3-torch is not installed')
    rng = np.random.default_rng(0)
    spec = {'image': 'array(float32,1,8,8)', 'label': 'int(4)', 'number': 'int(4)'}
    with bags.ShardedDatasetWriter('x', spec, shard_length=60) as writer:
        for i in range(200):
            image = rng.random((1, 8, 8), np.float32)
            image[0, 0, 0] = i
            writer.append({'image': image, 'label': i % 4, 'number': i})


def long_a_killed_training_continues_with_the_same_losses():
    _write()
    expected = json.loads(python(TRAINING, -1).splitlines()[-1])
    assert len(expected) == 26, expected  # two epochs of 200 / 16
    for kill in (13, 20):  # at the end of the first epoch, in the second
        python(TRAINING, kill, code=-9)
        assert os.path.exists('state')
        assert json.loads(python(TRAINING, -1).splitlines()[-1]) == expected, kill


def long_a_data_loader_has_forked_and_spawned_workers():
    _write()
    python(WORKERS, 'fork', 2)
    python(WORKERS, 'spawn', 1)

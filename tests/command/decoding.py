"""bags import --decode: messages of MCAP become fields."""
import base64
import hashlib
import json
import os
import pathlib
import random
import shutil
import struct

import messages
from harness import each, read, refuse, run
from messages import Node

SEEDS = range(4 if os.environ.get('BAGS_QUICK') else 40)
LIMITS = {'uint8': (0, 255), 'int8': (-128, 127), 'uint16': (0, 65535), 'int16': (-2**15, 2**15 - 1),
          'uint32': (0, 2**32 - 1), 'int32': (-2**31, 2**31 - 1), 'uint64': (0, 2**64 - 1),
          'int64': (-2**63, 2**63 - 1)}


def _is_here():
    lines = run('--version').out.decode().splitlines()
    return 'mcap' in next(line for line in lines if line.startswith('importers:')).split()


def _number(name, dtype, **more):
    return Node('number', name, dtype, **more)


def _struct(name, *members):
    return Node('struct', name, members=members)


def _value(rng, node):
    """A random value of a node."""
    if node.optional and rng.random() < 0.3:
        return None
    if node.kind == 'struct':
        value = {member.name: _value(rng, member) for member in node.members}
        chosen = {}
        for member in node.members:
            if member.one_of and value[member.name] is not None:
                if member.one_of in chosen:
                    value[chosen[member.one_of]] = None
                chosen[member.one_of] = member.name
        return value
    if node.kind == 'list':
        count = rng.randrange((3 if node.most is None else node.most) + 1)
        return [_value(rng, node.item) for _ in range(count if node.length is None
                                                      else node.length)]
    if node.kind == 'text':
        return ''.join(rng.choice('aé"\n字') for _ in range(rng.randrange(5)))
    if node.kind == 'bytes':
        return rng.randbytes(rng.randrange(5))
    if node.dtype == 'bool':
        return rng.random() < 0.5
    if node.dtype in LIMITS:
        low, high = LIMITS[node.dtype]
        return rng.choice([low, high, 0, 1, rng.randint(low, high)])
    value = rng.choice([0.0, -1.5, rng.random()])
    return struct.unpack('f', struct.pack('f', value))[0] if node.dtype == 'float32' else value


def _ros2(rng, depth=0):
    """A random message of ROS 2."""
    members = []
    for i in range(rng.randrange(0 if depth else 1, 5)):
        kind = rng.choice(['number', 'number', 'text', 'struct'] if depth < 3 else ['number', 'text'])
        if kind == 'struct':
            node = _ros2(rng, depth + 1)
        elif kind == 'number':
            node = _number('', rng.choice(list(messages.FORMATS)))
        else:
            node = Node('text', most=rng.choice([None, 12]))  # bytes
        shape = rng.random()
        if shape < 0.4:
            length = rng.choice([None, None, 2])
            most = rng.choice([None, 2]) if length is None else None
            node = Node('list', item=node, length=length, most=most)
        node.name = f'm{i}'
        members.append(node)
    return _struct('', *members)


def _protobuf(rng, proto3, depth=0):
    members = []
    for i in range(rng.randrange(0 if depth else 1, 6)):
        kind = rng.choice([*messages.TYPES] if depth < 3 else ['int32', 'string'])
        dtype = messages.TYPES[kind][1]
        if kind == 'message':
            node = _protobuf(rng, proto3, depth + 1)
        else:
            node = Node({'string': 'text', 'bytes': 'bytes'}.get(kind, 'number'), dtype=dtype)
        node.proto = kind
        if rng.random() < 0.3:
            node = Node('list', item=node)
        else:
            node.optional = kind == 'message' or not proto3 or rng.random() < 0.4
            if node.optional and rng.random() < 0.5:
                node.one_of = rng.choice('ab')
        node.name = f'm{i}'
        members.append(node)
    return _struct('', *members)


def _check(out, path, topics, sent):
    """The dataset must have the fields of these messages: (topic, value)."""
    spec = {'log_time': 'i64', 'publish_time': 'i64', 'sequence': 'u64', 'topic': 'utf8'}
    for topic, root in topics.items():
        if any(one == topic for one, _ in sent):
            for one, value in sent:
                if one == topic:
                    messages.learn(root, value)
            messages.plan(root, topic, spec)
    run('import', path, out, '--decode')
    found = read(out)
    assert found['spec'] == {name.replace('/', '_'): spec[name] for name in spec}, (found['spec'], spec)
    assert len(found['data']) == len(sent)
    for i, (row, (topic, value)) in enumerate(zip(found['data'], sent)):
        assert row['topic']['value'] == topic and row['sequence']['value'] == i
        wanted = {}
        messages.fill(topics[topic], value, wanted)
        for name in spec:
            if name in ('log_time', 'publish_time', 'sequence', 'topic'):
                continue
            items = [hashlib.sha256(blob).hexdigest() for blob in wanted.get(name, [])]
            got = row[name.replace('/', '_')]
            assert [item['sha256'] for item in got.get('items', [])] == items, (name, i, got, wanted)


def _without_empty(node):
    """IDL has no structure without members."""
    if node.kind == 'struct' and not node.members:
        node.members.append(_number('structure_needs_at_least_one_member', 'uint8'))
    for inner in node.members + [node.item] * (node.item is not None):
        _without_empty(inner)


@each(SEEDS)
def messages_of_ros2_become_fields(seed):
    if not _is_here():
        return
    rng = random.Random(seed)
    topics = {'/a': _ros2(rng), '/b/c': _ros2(rng)}
    _without_empty(topics['/a'])
    sent = [(topic, _value(rng, topics[topic]))
            for topic in rng.choices(list(topics), k=rng.randrange(1, 9))]
    channels = {1: ('/a', 'cdr', 7), 2: ('/b/c', 'cdr', 8), 'schemas': {
        7: messages.idl(topics['/a'], rng), 8: messages.ros2(topics['/b/c'], rng=rng)}}
    number = {'/a': 1, '/b/c': 2}
    messages.mcap('x.mcap', channels, [
        (number[topic], messages.cdr(topics[topic], value, rng.random() < 0.7))
        for topic, value in sent], rng.random() < 0.5, rng.random() < 0.5)
    _check('out', 'x.mcap', topics, sent)


@each(SEEDS)
def messages_of_protobuf_become_fields(seed):
    if not _is_here():
        return
    rng = random.Random(seed)
    proto3 = seed % 3 != 0
    topics = {'/a': _protobuf(rng, proto3), 'b': _protobuf(rng, proto3)}
    sent = [(topic, _value(rng, topics[topic]))
            for topic in rng.choices(list(topics), k=rng.randrange(1, 9))]
    channels = {1: ('/a', 'protobuf', 7), 2: ('b', 'protobuf', 8), 'schemas': {
        7: messages.descriptors(topics['/a'], proto3=proto3),
        8: messages.descriptors(topics['b'], 'Other', 'deep.package', proto3)}}
    number = {'/a': 1, 'b': 2}
    messages.mcap('x.mcap', channels, [
        (number[topic], messages.protobuf(topics[topic], value, rng, proto3))
        for topic, value in sent], rng.random() < 0.5, rng.random() < 0.5)
    _check('out', 'x.mcap', topics, sent)


def _one(topic, schema, data, encoding='cdr', path='x.mcap'):
    """A file of these messages."""
    channels = {1: (topic, encoding, 1 if schema else 0)}
    if schema:
        channels['schemas'] = {1: schema}
    messages.mcap(path, channels, [(1, one) for one in data])


def _ros2_text(text):
    return 'a_msgs/msg/A', 'ros2msg', text.encode()


def _rows(path):
    """The datapoints as `bags get` prints them, arrays as lists."""
    def plain(value):
        if isinstance(value, dict) and 'preview' in value:
            return value['preview']
        return [plain(item) for item in value] if isinstance(value, list) else value
    return [{name: plain(value) for name, value in row.items()}
            for row in run('get', path, ':').lines]


POSES = _ros2_text('''# poses
std_msgs/Header header
Pose[] poses
uint8[] data
builtin_interfaces/Duration age
string NAME=poses
string[<=3] names [ "a", "b" ]
bool ok true
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: a_msgs/Pose
float64 x
float32[2] yz
''')


def the_members_of_a_message_have_the_names_of_their_path():
    if not _is_here():
        return
    header = _struct('header', _struct('stamp', _number('sec', 'int32'),
                                       _number('nanosec', 'uint32')), Node('text', 'frame_id'))
    pose = _struct('', _number('x', 'float64'),
                   Node('list', 'yz', item=_number('', 'float32'), length=2))
    age = _struct('age', _number('sec', 'int32'), _number('nanosec', 'uint32'))
    root = _struct('', header, Node('list', 'poses', item=pose),
                   Node('list', 'data', item=_number('', 'uint8')), age,
                   Node('list', 'names', item=Node('text')), _number('ok', 'bool'))
    value = {'header': {'stamp': {'sec': -1, 'nanosec': 5}, 'frame_id': 'map'},
             'poses': [{'x': 1.5, 'yz': [1, 2]}, {'x': -2.0, 'yz': [3, 4]}], 'data': [1, 2, 3],
             'age': {'sec': 3, 'nanosec': 4}, 'names': ['a', 'ü'], 'ok': True}
    _one('/poses', POSES, [messages.cdr(root, value)])
    run('import', 'x.mcap', 'out', '--decode')
    assert read('out')['spec'] == {
        'log_time': 'i64', 'publish_time': 'i64', 'sequence': 'u64', 'topic': 'utf8',
        '_poses.age.nanosec': 'u64[]', '_poses.age.sec': 'i64[]',
        '_poses.data': 'array(uint8,-1)[]', '_poses.header.frame_id': 'utf8[]',
        '_poses.header.stamp.nanosec': 'u64[]', '_poses.header.stamp.sec': 'i64[]',
        '_poses.names': 'utf8[]', '_poses.ok': 'array(bool)[]',
        '_poses.poses.x': 'array(float64)[]', '_poses.poses.yz': 'array(float32,2)[]'}
    assert _rows('out') == [{
        'log_time': 1000, 'publish_time': 900, 'sequence': 0, 'topic': '/poses',
        '_poses.age.nanosec': [4], '_poses.age.sec': [3], '_poses.data': [[1, 2, 3]],
        '_poses.header.frame_id': ['map'], '_poses.header.stamp.nanosec': [5],
        '_poses.header.stamp.sec': [-1], '_poses.names': ['a', 'ü'], '_poses.ok': [True],
        '_poses.poses.x': [1.5, -2.0], '_poses.poses.yz': [[1, 2], [3, 4]]}]
    run('import', 'x.mcap', 'bytes')
    assert read('bytes')['spec']['_poses'] == 'bytes[]'
    _one('/poses', POSES, [messages.cdr(root, value, little=False)], path='y.mcap')
    run('import', 'y.mcap', 'big', '--decode')
    assert _rows('big') == _rows('out')


def bytes_that_begin_like_a_file_have_its_type():
    if not _is_here():
        return
    image = b'\xff\xd8\xff\xe0' + bytes(9)
    root = _struct('', Node('text', 'format'), Node('list', 'data', item=_number('', 'uint8')))
    schema = messages.ros2(root)
    _one('/image', schema, [messages.cdr(root, {'format': 'jpeg', 'data': list(image)})] * 2)
    found = run('import', 'x.mcap', '--dry-run', '--decode').json
    assert found['spec']['_image.data'] == 'jpeg[]'
    proto = _struct('', Node('bytes', 'data', proto='bytes'))
    _one('image', messages.descriptors(proto),
         [messages.protobuf(proto, {'data': image})], 'protobuf')
    assert run('import', 'x.mcap', '--dry-run', '--decode').json['spec']['image.data'] == 'jpeg[]'


def messages_of_json_become_fields():
    if not _is_here():
        return
    rows = [{'a': 1, 'f': 1, 'mixed': 1, 'deep': {'b': [1, 2]}, 'list': [{'x': 1, 'y': 'u'}],
             'grid': [[1, 2], [3]], 'some': [{'p': 1}, {}], 'none': None, 'big': 2**64 - 1},
            {'a': -5, 'f': 1.5, 'mixed': 'text', 'deep': {'b': []}, 'list': [], 'none': None,
             'grid': [], 'more': True, 'holes': [1, None], 'big': 0, 'nested': [[['a']]]}]
    _one('/j', ('j', 'jsonschema', b'{}'), [json.dumps(row).encode() for row in rows], 'json')
    run('import', 'x.mcap', 'out', '--decode')
    spec = read('out')['spec']
    assert {name[3:]: type for name, type in spec.items() if name[:3] == '_j.'} == {
        'a': 'i64[]', 'big': 'u64[]', 'deep.b': 'array(int64,-1)[]', 'f': 'array(float64)[]',
        'grid': 'array(int64,-1)[]', 'holes': 'msgpack[]', 'list.x': 'i64[]', 'list.y': 'utf8[]',
        'mixed': 'msgpack[]', 'more': 'array(bool)[]', 'nested': 'msgpack[]', 'none': 'msgpack[]',
        'some.p': 'msgpack[]'}, spec
    first, second = ({name[3:]: value for name, value in row.items() if name[:3] == '_j.'}
                     for row in _rows('out'))
    assert first == {'a': [1], 'big': [2**64 - 1], 'deep.b': [[1, 2]], 'f': [1.0],
                     'grid': [[1, 2], [3]], 'holes': [], 'list.x': [1], 'list.y': ['u'],
                     'mixed': [1], 'more': [], 'nested': [], 'none': [], 'some.p': [1, None]}
    assert second == {'a': [-5], 'big': [0], 'deep.b': [[]], 'f': [1.5], 'grid': [],
                      'holes': [1, None], 'list.x': [], 'list.y': [], 'mixed': ['text'],
                      'more': [True], 'nested': [[['a']]], 'none': [], 'some.p': []}
    # A message need not be an object, and have no schema.
    _one('n', None, [b'1', b'2.5'], 'json')
    run('import', 'x.mcap', 'numbers', '--decode')
    assert [row['n'] for row in _rows('numbers')] == [[1.0], [2.5]]


def _refused(schema, data, *says, encoding='cdr'):
    _one('/t', schema, data, encoding)
    refuse('import', 'x.mcap', 'out', '--decode',
           says=[f'x.mcap: topic "/t": message {len(data) - 1}: ', *says])
    assert not os.path.exists('out')
    run('import', 'x.mcap', '--dry-run')


def a_message_that_its_schema_does_not_describe_is_an_error():
    if not _is_here():
        return
    good = b'\0\1\0\0' + struct.pack('<i', 5)
    schema = _ros2_text('int32 x')
    for bad, says in ((good[:-1], 'member "x": the message is shorter than its schema'),
                      (good[:3], 'shorter'), (good + b'\0', '(1 bytes remain)'),
                      (good + bytes(4), '(4 bytes remain)'), (good + b'\0\0\0\1', '4 bytes'),
                      (b'\0\7\0\0' + good[4:], 'representation of CDR not supported (0007')):
        _refused(schema, [good, bad], says)
    _one('/t', _ros2_text('int8 x'), [b'\0\1\0\0\1\0\0\0'])  # is padded
    run('import', 'x.mcap', '--dry-run', '--decode')
    head = b'\0\1\0\0'
    for text, data, says in (
            ('string s', struct.pack('<I', 2) + b'ab', 'text without a zero byte'),
            ('string s', struct.pack('<I', 2) + b'\xff\0', 'invalid UTF-8 at byte 0'),
            ('string s', struct.pack('<I', 2**32 - 1) + b'ab', 'shorter'),
            ('string<=1 s', struct.pack('<I', 3) + b'ab\0', '(2, maximum 1)'),
            ('int8[<=1] s', struct.pack('<I', 2) + b'ab', '(2, maximum 1)'),
            ('float64[] s', struct.pack('<I', 2**31), 'shorter'),
            ('string[] s', struct.pack('<I', 2**31), 'shorter'),
            ('bool b', b'\2', 'a bool is neither 0 nor 1 (2)')):
        _refused(_ros2_text(text), [head + data], text.split()[1], says)
    proto = _struct('', _number('x', 'int32', proto='int32'), Node('text', 's', proto='string'))
    schema = messages.descriptors(proto)
    for bad, says in ((b'\x08', 'shorter'), (b'\x12\x05a', 'shorter'), (b'\x1a\0', '(field 3)'),
                      (b'\x0d\0\0\0\0', 'member "x": not encoded as in the schema (wire type 5)'),
                      (b'\x12\1\xff', 'member "s": invalid UTF-8'),
                      (b'\x08' + messages.varint(2**31), 'out of range for int32 (2147483648)')):
        _refused(schema, [b'', bad], says, encoding='protobuf')
    for bad, says in ((b'{"a": 1', 'invalid JSON'), (b'', 'invalid JSON'),
                      (b'{"a": 1, "a": 2}', 'duplicate name')):
        _refused(None, [b'{}', bad], says, encoding='json')


def a_schema_that_cannot_be_used_is_an_error():
    if not _is_here():
        return
    for text, says in (
            ('B b', 'member "b": the schema lacks the type "B"'),
            ('wstring w', 'member "w": wstring is not supported'),
            ('x', 'invalid line in the schema (x)'), ('int32[x] a', 'invalid line'),
            ('int32<=3 a', 'invalid line'), ('int32[3 a', 'invalid line'),
            ('A a', 'member "a": the schema is recursive (a_msgs/msg/A)'),
            ('B b\n====\nMSG: a_msgs/B\nC[] c\n====\nMSG: a_msgs/C\nB b', 'is recursive (a_msgs/B)'),
            ('B b\n====\nint32 x', 'is not followed by "MSG: "'),
            ('\n'.join(f'T{i + 1} a\nT{i + 1} b\n===\nMSG: a_msgs/T{i + 1}' for i in range(30)),
             'too many members (maximum 10000)')):
        _refused(_ros2_text(text), [b'\0\1\0\0' + bytes(64)], says)
    for text, says in (
            ('struct A { wstring w; };', 'member "w": wstring is not supported'),
            ('struct A { long double w; };', 'member "w": long is not supported'),
            ('struct A { b::C c; };', 'member "c": the schema lacks the type "b::C"'),
            ('struct A { sequence<A> a; };', 'the schema is recursive (A)'),
            ('typedef B A; typedef A B;', 'the schema is recursive (A)'),
            ('struct A { int8 x[N]; };', 'not supported or invalid (at "N];")'),
            ('struct A { int8 x, y; };', 'not supported or invalid (at ", y;")'),
            ('union A switch (long) { };', '(at "union")'), ('struct A : B { };', 'invalid'),
            ('struct A {', 'invalid'), ('@x(', 'invalid'), ('module', 'invalid'),
            ('struct A { sequence<int8 x; };', 'invalid'), ('', 'lacks the type "A"')):
        _refused(('A', 'ros2idl', text.encode()), [b'\0\1\0\0' + bytes(64)], says)
    _refused(('a', 'ros2msg2', b''), [b''],
             'cannot decode messages in "cdr" with a schema in "ros2msg2"')
    _refused(None, [b''], 'cannot decode messages in "cdr" with no schema')
    _refused(('a', 'x', b''), [b''], 'messages in "ros1" with a schema in "x"', encoding='ros1')
    part = messages.part
    for schema, says in ((b'\x08', 'not a FileDescriptorSet'), (b'', 'lacks the type "A"'),
                         (part(1, part(12, b'editions')), 'syntax of the schema not supported'),
                         (part(1, part(4, part(1, b'A') + part(2, part(1, b'a') + part(3, 1) +
                          part(4, 1) + part(5, 11) + part(6, b'.A')))), 'is recursive (A)'),
                         (part(1, part(4, part(1, b'A') + part(2, part(1, b'a') + part(5, 10)))),
                          'groups are not supported'),
                         (part(1, part(4, part(1, b'A') + part(2, part(1, b'a') + part(5, 99)))),
                          'type not supported (99)')):
        _refused(('A', 'protobuf', schema), [b''], says, encoding='protobuf')
    messages.mcap('x.mcap', {1: ('/t', 'cdr', 4)}, [(1, b'')])
    refuse('import', 'x.mcap', 'out', '--decode', says='message 0: the file lacks its schema (number 4)')
    messages.mcap('x.mcap', {1: ('/t', 'json', 0), 2: ('/t', 'cdr', 3), 'schemas': {
        3: _ros2_text('int8 x')}}, [(1, b'{}'), (2, b'\0\1\0\0\1')])
    refuse('import', 'x.mcap', 'out', '--decode',
           says='message 1: another channel of this topic has another schema or encoding')


def channels_and_schemas_are_kept():
    """In info.json, with and without --decode; in the first shard, and never replaced."""
    if not _is_here():
        return
    proto = _struct('', _number('x', 'int32', proto='int32'))
    binary = messages.descriptors(proto)
    text = _ros2_text('int32 x # "ü"')
    for summary in (True, False):
        messages.mcap('x.mcap', {1: ('/a', 'cdr', 7), 3: ('/b', 'protobuf', 9), 'schemas': {
            7: text, 9: binary}}, [(1, b'\0\1\0\0\1\0\0\0'), (3, b'')] * 3, summary=summary)
        for options in ([], ['--decode'], ['--shard-length', '2']):
            shutil.rmtree('out', ignore_errors=True)
            run('import', 'x.mcap', 'out', *options)
            path = pathlib.Path('out/000000' if '--shard-length' in options else 'out')
            found = json.loads((path / 'info.json').read_text())
            assert found == {'mcap': {
                'channels': [
                    {'id': 1, 'topic': '/a', 'message_encoding': 'cdr', 'schema_id': 7,
                     'metadata': {'key': 'value'}},
                    {'id': 3, 'topic': '/b', 'message_encoding': 'protobuf', 'schema_id': 9,
                     'metadata': {'key': 'value'}}],
                'schemas': [
                    {'id': 7, 'name': text[0], 'encoding': 'ros2msg', 'data': text[2].decode()},
                    {'id': 9, 'name': binary[0], 'encoding': 'protobuf',
                     'data_base64': base64.b64encode(binary[2]).decode()}]}}, found
            if '--shard-length' in options:
                (path / 'info.json').unlink()
                run('import', 'x.mcap', 'out', *options, '--resume')
                assert json.loads((path / 'info.json').read_text()) == found
                messages.mcap('y.mcap', {1: ('/a', 'cdr', 7), 3: ('/b', 'json', 0), 'schemas': {
                    7: text}}, [(1, b'\0\1\0\0\1\0\0\0')])
                said = run('import', 'y.mcap', 'out', *options, '--append').err
                assert 'out: its info.json is kept, and does not have the metadata of y.mcap' in said, said
                assert json.loads((path / 'info.json').read_text()) == found
                assert not pathlib.Path('out/000003/info.json').exists()
    for worker in (1, 0):
        run('import', 'x.mcap', 'w', '--shard-start', worker, '--shard-stop', 2)
        assert pathlib.Path('w/000001/info.json').exists() is False
    assert pathlib.Path('w/000000/info.json').exists()


def only_mcap_is_decoded():
    pathlib.Path('x.csv').write_text('a\n1\n')
    if _is_here():
        refuse('import', 'x.csv', 'out', '--decode', says='--decode: only MCAP', code=2)
    messages.mcap('x.mcap', {1: ('/t', 'x', 0), 2: ('/u', 'json', 0)}, [(2, b'{"a": 1}')])
    if _is_here():
        assert 'left out: 1 topic without messages (/t)' in run(
            'import', 'x.mcap', 'out', '--decode').err

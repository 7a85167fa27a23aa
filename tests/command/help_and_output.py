"""Help, exit codes, and what happens when output goes nowhere."""
import json
import base64
import os
import pathlib
import re
import resource
import select
import signal
import subprocess
import time

import harness
from harness import each, has_codec, pack, refuse, run

COMMANDS = ('info', 'get', 'index', 'export', 'pack', 'images', 'import', 'sheet', 'load',
            'finalize', 'recover', 'verify', 'checksum', 'zip', 'copy')


@each(COMMANDS)
def every_command_has_one_screen_of_help_with_an_example(name):
    text = run('help', name).out.decode()
    assert text == run(name, '--help').out.decode()
    assert text == run(name, 'x', '-h').out.decode()
    assert text.startswith(f'usage: bags {name} ') and 'example:' in text
    lines = text.splitlines()
    assert len(lines) <= {'load': 76, 'import': 56, 'export': 72}.get(name, 47) and max(map(len, lines)) <= 72, max(lines, key=len)
    assert not any(line.endswith(' ') for line in lines)


def help_lists_every_command():
    text = run('help').out.decode()
    assert text == run('--help').out.decode() == run('-h').out.decode()
    for name in COMMANDS:
        assert f'\n  {name} ' in text


def the_version_and_the_formats_built_in_are_printed():
    first, second, third = run('--version').out.decode().splitlines()
    assert first.startswith('bags ') and second.startswith('formats: ')
    for name in second.split()[1:]:
        assert name == 'none;' or pathlib.Path(
            harness.ROOT, 'formats', f'{name}.c').exists() or 'none' in second


def the_man_page_has_all_of_the_help():
    lines = run('help', 'man').out.decode().splitlines()
    assert lines[0].startswith('.Dd ')
    # The macros and escapes of mdoc removed; its paragraphs as words.
    plain = ' '.join(lines).replace('\\(aq', "'").replace('\\-', '-').replace('\\&', '')
    words = ' '.join(plain.split())
    for name in COMMANDS:
        usage, *parts = run('help', name).out.decode().split('\n\n')
        assert f'.Cm {name} .Li {usage.split(" ", 3)[3]}' in words
        for part in parts:
            if not part.startswith('  --'):
                part = part.removeprefix('example:\n')
                assert ' '.join(part.split()) in words, part
        for option in re.findall(r'^  --(\S+)', '\n\n'.join(parts), re.M):
            assert f'.It Fl Fl {option} ' in words, option
    types = run('help', 'types').out.decode()
    assert ' '.join(types.split()) in words


def the_help_lists_every_type():
    text = run('help', 'types').out.decode()
    for name in ('bytes', 'utf8', 'int', 'int(N), int(N,big)', 'u64', 'i64',
                 'array', 'array(DTYPE,D0,D1,...)', 'npy', 'msgpack', 'tree',
                 'jpeg, jpeg(QUALITY)', 'png, png(LEVEL)', 'jpg, jpg(QUALITY)'):
        assert f'\n{name}\n    value ' in text, name
    assert 'array(float32,-1,3)[]' in text and 'formats/jpeg.c' in text
    assert 'bags' in text and 'granular' in text
    assert max(map(len, text.splitlines())) <= 72


@each([(), ('nonsense',), ('help', 'nonsense'), ('info',), ('info', 'a', 'b'),
       ('info', 'a', '--nonsense'), ('info', 'a', '--json=1'), ('get', 'a'),
       ('export', 'a'), ('pack', 'a'), ('images', 'a'), ('sheet', 'a'),
       ('info', ''), ('verify', ''), ('export', 'a', ''), ('images', '', 'b'),
       ('export', 'a', '-'), ('sheet', 'a', 'b.gif'), ('sheet', 'a', 'b'),
       ('finalize',), ('recover',), ('checksum',), ('verify',),
       ('zip', 'a'), ('zip', 'a', 'b'),
       ('verify', 'a', '--jobs', '0'), ('info', 'a', '--live', '--skip-unfinished'),
       ('pack', 'a', 'b', '--resume', '--append'),
       ('verify', 'a', '--jobs', 'x'), ('verify', 'a', '--quick', '--decode'),
       ('pack', 'a', 'b', '--spec'),
       ('pack', 'a', 'b', '--spec', 'x=int', '--spec', 'y=int'),
       ('pack', 'a', 'b', '--shard-size', '10X'),
       ('pack', 'a', 'b', '--shard-size', '1.5G'),
       ('pack', 'a', 'b', '--shard-size', '-1'),
       ('pack', 'a', 'b', '--shard-size', ''),
       ('pack', 'a', 'b', '--shard-size', '99999999999999999999'),
       ('pack', 'a', 'b', '--shard-size', '18446744073709551615K'),
       ('pack', 'a', 'b', '--shard-length', '5K'),
       ('pack', 'a', 'b', '--shard-length', '18446744073709551616'),
       ('pack', 'a', 'b', '--shard-start', '2'),
       ('pack', 'a', 'b', '--shard-start', '2', '--shard-stop', '2'),
       ('sheet', 'a', 'b.png', '--rows', '0'), ('images', 'a', 'b', '--type', 'gif'),
       ('export', 'a', 'b', '--raw', '--npy')])
def a_command_line_that_makes_no_sense_ends_with_2(words):
    result = refuse(*words, code=2)
    assert result.out == b'' and 'bags help' in result.err


@each(['1k', '1K', '1kiB', '1024B'])
def units_of_sizes_may_be_in_lower_case(size):
    pack([{'x': 'y' * 100} for _ in range(30)], 'x=utf8', 'out', '--shard-size', size)
    assert len(list(pathlib.Path('out').iterdir())) == 4


@each(['info', 'get', 'export', 'verify', 'sheet'])
def a_path_that_is_not_there_is_named(name):
    more = {'get': ['0'], 'export': ['out'], 'sheet': ['o.png']}.get(name, [])
    refuse(name, 'no/such', *more, says='no/such')


@each(['ftp://host/ds', 'HTTP://host/ds', 's3://', 'https:///ds', 's3:///x'])
def a_url_that_cannot_be_read_is_refused(url):
    for words in (['info'], ['get', '0'], ['verify'], ['load'], ['copy', 'out']):
        refuse(words[0], url, *words[1:], says=('s3://BUCKET/PATH', url), code=2)


def _dataset(count=3):
    pack([{'text': 'x' * 1000}] * count, 'text=utf8')


def a_full_disk_behind_standard_output_is_an_error():
    _dataset()
    with open('/dev/full', 'wb') as full:
        for words in (['get', 'out', '0'], ['info', 'out'], ['help'],
                      ['get', 'out', '0', 'text', '--raw'], ['verify', 'out'],
                      ['--version'], ['info', 'out', '--json']):
            done = subprocess.run([harness.PROGRAM, *words], stdout=full,
                                  stderr=subprocess.PIPE)
            assert done.returncode == 1, words
            assert b'standard output' in done.stderr, words


def a_closed_pipe_ends_it_silently():
    _dataset(5000)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([harness.PROGRAM, 'get', 'out', '0:5000'],
                          stdout=writer, stderr=subprocess.PIPE,
                          restore_signals=True)
    os.close(writer)
    assert done.returncode == 1, done
    assert done.stderr == b'', done.stderr
    done = subprocess.run(
        ['bash', '-c', '"$0" get out : | head -1', harness.PROGRAM],
        capture_output=True)
    assert done.stdout.count(b'\n') == 1 and done.stderr == b'', done.stderr


def _limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))


def a_file_size_limit_is_an_error_and_no_death():
    rows = [{'text': 'x' * 1000}] * 100
    harness.write_lines('manifest.jsonl', rows)
    refuse('pack', 'manifest.jsonl', 'out', '--spec', 'text=utf8',
           says=('File too large', 'is kept, --resume continues'), preexec_fn=_limit)
    pack(rows, 'text=utf8', 'good')
    refuse('export', 'good', 'unpacked', preexec_fn=_limit,
           says='File too large')
    assert not pathlib.Path('unpacked').exists()


def standard_output_that_is_closed_does_no_harm():
    _dataset()
    done = subprocess.run(['sh', '-c', '"$0" get out 0 --out files >&-',
                           harness.PROGRAM], stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert pathlib.Path('files/000000-text.txt').read_text() == 'x' * 1000


def info_prints_utf8_as_get_does():
    pack([{'größe': 'x'}], 'größe=utf8')
    for words in (['info'], ['info', '--json'], ['get', '0']):
        assert 'größe' in run(words[0], 'out', *words[1:]).out.decode()
    text = run('info', 'out').out.decode().splitlines()
    assert text[-1].startswith('größe  utf8'), text
    assert text[-1].endswith(' 1 byte'), text


def names_cannot_steer_the_terminal():
    result = refuse('info', 'bad\x1b[31m\nname')
    assert '\x1b' not in result.err and result.err.count('\n') == 1


@each([(('infp',), 'bags info'), (('VERFIY', 'x'), 'bags verify'), (('check', 'x'), 'bags verify'),
       (('hlep',), 'bags help'), (('unpack',), 'bags export'), (('help', 'expotr'), 'bags help export'),
       (('--verison',), 'bags --version'), (('help', 'tyeps'), 'bags help types'),
       (('pack', 'm', 'o', '--chekcsum'), '--checksum'), (('pack', 'm', 'o', '--continue'), '--resume'),
       (('info', 'x', '--jsno'), '--json'), (('verify', 'x', '--threads=2'), '--jobs'),
       (('load', 'x', '--jobs', '2'), '--threads'), (('get', 'x', '0', '-out', 'd'), '--out'),
       (('import', 'x', '--from', 'hdf', '--dry-run'), 'hdf5'),
       (('import', 'x', '--from', 'web-dataset', '--dry-run'), 'webdataset'),
       (('frobnicate',), ''), (('x',), ''), (('pack', 'm', 'o', '--frobnicate'), ''),
       (('get', 'x', '0', '-x'), '')])
def a_misspelt_word_is_named_with_what_it_may_mean(case):
    words, meant = case
    said = refuse(*words, code=2).err
    if meant in ('hdf5', 'webdataset') and meant not in run('--version').out.decode().split():
        return
    assert said.count('did you mean') == bool(meant), said
    assert not meant or f'; did you mean "{meant}"?' in said, said


def the_value_of_a_misspelt_option_is_not_shown():
    said = refuse('load', 'x', '--sate=' + SECRET, code=2).err
    assert 'no option --sate; did you mean "--state"?' in said and 'hunter2' not in said, said


def a_misspelt_field_is_named_with_what_it_may_mean():
    pack([{'id': 1, 'caption': 'x', 'photo': {'base64': ''}}], 'id=int,caption=utf8,photo=jpeg',
         'out', '--unchecked')
    fields = 'The fields are caption, id, photo'
    for words in (['get', 'out', '0', 'captoin'], ['get', 'out', '0', 'caption[0'],
                  ['get', 'out', '--key', 'captoin=a=b'], ['index', 'out', 'CAPTION'],
                  ['load', 'out', '--fields', 'capt'], ['sheet', 'out', 'o.png', '--field', 'capton']):
        refuse(*words, says=('; did you mean "caption"? ' + fields))
    refuse('get', 'out', '0', 'id=3', says='no field "id=3"; did you mean "id"?')
    said = refuse('get', 'out', '--key', 'ids=3', says='no field "ids"; did you mean "id"?').err
    assert 'ids=3' not in said, said
    refuse('get', 'out', '0', 'weight', says='no field "weight"; the fields are caption, id, photo')


# What a terminal obeys, or shows in another order than it is stored.
CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), '\u061c', '\u200e', '\u200f',
            *map(chr, range(0x2028, 0x202F)), *map(chr, range(0x2066, 0x206A))]


def _is_clean(bytes_, but='\n'):
    text = bytes_.decode('utf-8')  # and it must be UTF-8
    return not [c for c in CONTROLS if c in text and c not in but]


def text_of_data_cannot_steer_the_terminal():
    bad = ''.join(CONTROLS)
    rows = [{'t': bad, 'm': {bad[1:]: [bad]}}] if has_codec('msgpack') else [{'t': bad}]
    spec = 't=utf8' + (',m=msgpack' if has_codec('msgpack') else '')
    pack(rows, spec)
    for words in (['get', 'out', '0'], ['export', 'out', 'unpacked'],
                  ['get', 'out', '0', '--out', 'files']):
        assert _is_clean(run(*words).out), words
    assert run('get', 'out', '0').lines == rows
    assert _is_clean(pathlib.Path('unpacked/manifest.jsonl').read_bytes())
    run('pack', 'unpacked/manifest.jsonl', 'again', '--spec', spec)
    assert harness.files('again') == harness.files('out')


def a_name_with_a_semicolon_is_shown_as_it_is():
    name = 'x; set BAGS_EXISTING_APPEND; bags_recover'
    pathlib.Path('m.jsonl').write_text('{"n": 1}\n')
    words = 'pack', 'm.jsonl', name, '--spec', 'n=int', '--shard-length', 1
    run(*words)
    refuse(*words, says=[f'{name}/000000: already exists; ', 'pass --append to add'])
    os.unlink(f'{name}/000000/spec.json')
    refuse('get', name, 0, says=f'{name}/000000: unfinished (no spec.json); if its writer '
                                'crashed, run `bags recover`')
    faults = run('verify', name, '--json', code=1).out.decode()
    assert f'{name}/000000: unfinished' in faults and 'run `bags recover`' in faults
    refuse('info', 'y; bags_finalize', says='y; bags_finalize')


def names_of_files_and_fields_cannot_steer_the_terminal():
    bad = ''.join(c for c in CONTROLS if c not in '\0/')
    field = 'é\x9b\u202e\u2066x'
    os.mkdir(bad)
    out = f'{bad}/\x9b2Jout'
    for name in (out, bad + '/cut'):
        made = pathlib.Path(name)
        pack([{'x': 'y'}], 'x=utf8', name, '--no-checksum')
        (made / 'x.bag').rename(made / f'{field}.bag')
        (made / 'spec.json').write_text(json.dumps({field: 'utf8'}))
    (made / f'{field}.bag').write_bytes(b'')
    latin = bad.encode() + b'/\x9b\xe9'
    for words, code in [(['info', out], 0), (['get', out, '0'], 0), (['get', out, '9'], 1),
                        (['get', out, '0', 'none'], 1), (['verify', out], 0), (['verify', made], 1),
                        (['verify', made, '--json'], 1), (['checksum', out], 0),
                        (['recover', out], 0), (['finalize', out], 1), (['zip', out, bad + '/x.zip'], 0),
                        (['index', out, field], 0), (['copy', out, bad + '/copy'], 0),
                        (['export', out, bad + '/unpacked'], 0), (['load', out], None),
                        (['images', bad, 'pictures'], 1), (['info', latin], 1), (['get', made, '0'], 1)]:
        done = subprocess.run([harness.PROGRAM, *words], capture_output=True, timeout=harness.HANG)
        assert code in (None, done.returncode), (words, done)
        assert done.stdout or done.stderr
        assert _is_clean(done.stdout) and _is_clean(done.stderr), (words, done)
    said = run('verify', out).out.decode()
    assert '\\x1b' in said and '\\u009b2Jout' in said and '\\u202e' in said, said
    assert '\\x9b\\xe9' in refuse('info', latin).err


SECRET = 'https://user:hunter2@host/x?sig=hunter2'


@each([('pack', SECRET, 'out', '--spec', 'a=int'), ('pack', 'm', SECRET),
       ('pack', 'm', 'out', '--spec', SECRET + '.json'), ('images', SECRET, 'out'),
       ('images', 'd', SECRET), ('images', 'd', 'out', '--classes', SECRET),
       ('import', SECRET, 'out'), ('import', SECRET, '--dry-run'), ('import', 'x.tar', SECRET),
       ('export', 'out', SECRET), ('sheet', 'out', SECRET + '.png'), ('index', SECRET, 'a'),
       ('load', 'out', '--state', SECRET), ('load', 'out', '--state=' + SECRET),
       ('get', 'out', '0', '--out', SECRET), ('finalize', SECRET), ('recover', SECRET),
       ('checksum', SECRET), ('zip', 'out', SECRET + '.zip'), ('copy', 'out', SECRET)])
def a_url_in_place_of_a_local_path_is_refused_without_its_password(words):
    for scheme in ('https', 'ftp'):
        words = [word.replace('https', scheme) for word in words]
        said = refuse(*words, code=2).err
        assert 'hunter2' not in said and scheme + '://' in said, said
        assert words[0] == 'copy' or scheme == 'ftp' or 'must be a local path' in said, said
    assert not os.listdir('.')


def a_url_in_a_manifest_is_refused_without_its_password():
    said = pack([{'a': {'file': SECRET}}], 'a=bytes', code=1).err
    assert 'only local files are packed' in said and 'hunter2' not in said, said


def no_bar_without_a_terminal():
    result = pack([{'text': 'x'}] * 20000, 'text=utf8')
    assert result.err == ''


def a_line_a_minute_without_a_terminal():
    photo = {'base64': base64.b64encode(bytes(300 * 300 * 3)).decode()}
    pack([{'n': i, 'a': photo} for i in range(64)], 'n=int,a=array(uint8,300,300,3)')
    zips = iter(range(100))
    for words in (lambda: ['zip', 'out', f'{next(zips)}.zip'],
                  lambda: ['load', 'out', '--batch', '1', '--epochs', '3'],
                  lambda: ['sheet', 'out', f'{next(zips)}.png'],
                  lambda: ['export', 'out', f'{next(zips)}']):
        if words()[0] == 'sheet' and not harness.has_codec('png'):
            continue
        lines = run(*words(), env={**os.environ, 'BAGS_PROGRESS_SECONDS': '0.0001'}
                    ).err.splitlines()
        assert len(lines) > 1, (words(), lines)
        for line in lines:
            assert re.fullmatch(r'bags: \w+: \d+%  \d+ [a-zA-Z]+/s  \d+ s left', line), line
        # Within the minute there is none.
        assert run(*words()).err == ''
    for wrong in '0', '-1', 'x', '5 s':
        refuse('info', 'out', code=2, says='BAGS_PROGRESS_SECONDS must be a number',
               env={**os.environ, 'BAGS_PROGRESS_SECONDS': wrong})


def _large_dataset(out, count, size=1 << 20):
    """Texts of zero bytes, in a sparse file."""
    out = pathlib.Path(out)
    pack([{'t': ''}] * count, 't=utf8', out, '--no-checksum')
    with open(out / 't.bag', 'r+b') as file:
        file.truncate(count * size)
        file.seek(count * size)
        for i in range(count + 1):
            file.write((i * size).to_bytes(8, 'little'))


def verify_shows_percentage_and_time_left():
    try:
        master, slave = os.openpty()
    except OSError:
        print('skipped: no pseudo-terminals on this machine')
        return
    _large_dataset('out', 20000)
    job = subprocess.Popen([harness.PROGRAM, 'verify', 'out', '--decode'],
                           stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    shown = b''
    found = None
    while not found:  # after the first second less than a percent may be done
        more = os.read(master, 4096)
        assert more, shown
        shown += more
        found = re.search(rb'([1-9]\d*)%.* s left', shown)
    job.kill()
    job.wait()
    os.close(master)
    assert b'MiB/s' in shown and int(found[1]) < 100, shown


def a_terminal_gets_a_bar_when_the_work_is_long():
    try:
        master, slave = os.openpty()  # its width is 0 columns
    except OSError:
        print('skipped: no pseudo-terminals on this machine')
        return
    started = time.monotonic()
    job = subprocess.Popen([harness.PROGRAM, 'pack', '-', 'out', '--spec', 'a=int'],
                           stdin=subprocess.PIPE, stdout=slave, stderr=slave)
    shown, lines = bytearray(), 0

    def feed():
        nonlocal lines
        lines += 1
        job.stdin.write(b'{"a": 1}\n')
        job.stdin.flush()
        while select.select([master], [], [], 0.2)[0]:
            shown.extend(os.read(master, 4096))
        return b'/s' in shown
    harness.wait_for(feed, job)
    assert time.monotonic() - started > 1 and b'pack' in shown, shown
    job.stdin.close()
    shown.extend(os.read(master, 4096))
    job.wait()
    while f'out: {lines} datapoints'.encode() not in shown:
        assert select.select([master], [], [], 0)[0], shown
        shown.extend(os.read(master, 4096))
    os.close(slave)
    os.close(master)

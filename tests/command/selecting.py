"""Selection of datapoints by `bags derive` and `bags load`: --rows, --where, --exclude,
--range, --shuffle, --take."""
import json
import pathlib

from harness import each, has_sql, pack, refuse, run

LENGTH = 20
BOTH = ('derive', 'load')


def _dataset(path='x', first=0):
    pack([{'n': i} for i in range(first, first + LENGTH)], 'n=int(4)', path)


def _file(name, text):
    pathlib.Path(name).write_bytes(text.encode())
    return name


def _selected(which, words, paths=('x',), **options):
    """The values of the datapoints, in their order."""
    if which == 'derive':
        run('derive', *paths, 'out', '--copy', '--no-sync', *words, **options)
        return [row['n'] for row in run('get', 'out', ':').lines]
    lines = run('load', *paths, '--in-order', '--indices', *words, **options).lines
    return sum((line['indices'] for line in lines), [])


LISTS = [5, 7, 7, 3, 19, 0]
FORMS = {
    'lines': '\n'.join(map(str, LISTS)) + '\n\n',
    'lines of Windows': '\r\n'.join(map(str, LISTS)),
    'indented lines': ' ' + '\n\t'.join(map(str, LISTS)),
    'a byte order mark': '\ufeff' + '\n'.join(map(str, LISTS)),
    'a list': json.dumps(LISTS),
    'a list on several lines': json.dumps(LISTS, indent=1) + '\n',
}


@each([(which, form) for which in BOTH for form in FORMS])
def a_file_of_numbers_is_lines_or_a_list(case):
    which, form = case[0], FORMS[case[1]]
    _dataset()
    assert _selected(which, ['--rows', _file('r', form)]) == LISTS
    if which == 'load':
        assert _selected(which, ['--rows', '-'], stdin=form.encode()) == LISTS
        assert _selected(which, ['--rows', 'r', '--take', '3']) == LISTS[:3]
        assert _selected(which, ['--rows', '/dev/null']) == []


@each([(which, *bad) for which in BOTH for bad in (
    ('20', 'line 1: index 20 out of range (length 20)'), ('1\n-1', 'line 2: "-1"'),
    ('1.0', '"1.0" is not the number'), ('1 2', 'line 1: "2"'), ('[1,2', 'complete'),
    ('[1,]', 'is not the number'), ('1\n\n2', 'line 3'), ('[1] 2', '"2"'),
    ('[1,\nx]', 'line 2: "x"'), ('1\n99999999999999999999', 'line 2'), ('1,2', 'line 1'),
    ('{}', 'line 1'))])
def bad_numbers_are_refused_with_their_file(case):
    which, text, says = case
    _dataset()
    words = [which, 'x', *(['out'] if which == 'derive' else ['--indices'])]
    options = ['--rows', '--exclude'] if which == 'derive' else ['--rows']
    for option in options:
        done = refuse(*words, option, _file('rows.txt', text), says=('bags: rows.txt: ', says))
        assert done.out == b'' and not pathlib.Path('out').exists()
        refuse(*words, option, 'no-such', says='no-such: cannot open')


# The options in the order in which they apply, what they select, and the commands that
# have them.
CASES = [
    (['--where', 'rowid % 7 = 3'], [3, 10, 17], BOTH),
    (['--where', '0'], [], BOTH),
    (['--rows', LISTS, '--where', 'rowid > 4'], [5, 7, 7, 19], BOTH),
    (['--rows', [], '--where', 'rowid > 4'], [], BOTH),
    (['--rows', LISTS, '--where', 'rowid > 4', '--take', '2'], [5, 7], ['load']),
    (['--rows', range(19, 4, -1), '--exclude', [19, 17, 6], '--range', '1:-1:2'],
     [i for i in range(19, 4, -1) if i not in (19, 17, 6)][1:-1:2], ['derive']),
    (['--exclude', range(3, 20), '--range', '[2,0,-1]'], [2, 0, 2], ['derive']),
    (['--where', 'n < 3', '--exclude', [1], '--range', '-1'], [2], ['derive']),
    (['--range', '20:'], [], ['derive']),
]


@each([(which, i) for i, case in enumerate(CASES) for which in case[2]])
def selections_apply_one_after_the_other(case):
    which, i = case
    words, expected, _ = CASES[i]
    if '--where' in words and not has_sql():
        return
    _dataset()
    words = [word if isinstance(word, str) else _file(f'list{k}', ''.join(f'{n}\n' for n in word))
             for k, word in enumerate(words)]
    assert _selected(which, words) == expected


@each(BOTH)
def an_expression_that_is_wrong_says_what_it_may_be(which):
    if not has_sql():
        return
    _dataset()
    for where, says in (('1 LIMIT 2', 'syntax error'), ('absent = 1', 'no such column'),
                        ('N == ', '; --where takes one expression, such as'),
                        ('m = 3', 'the fields are n')):
        refuse(which, 'x', *(['out'] if which == 'derive' else []), '--where', where, says=says)


def several_datasets_are_one_to_derive_and_each_its_own_to_load():
    if not has_sql():
        return
    _dataset()
    _dataset('y', LENGTH)
    paths = ['x', 'y']
    assert _selected('derive', ['--where', 'rowid IN (1, 22)'], paths) == [1, 22]
    assert _selected('load', ['--where', 'rowid IN (1, 2)', '--take', '1'], paths) == \
        [[0, 1], [1, 1]]
    refuse('load', *paths, '--rows', _file('r', '1\n'), code=2, says='--rows needs a single dataset')
    refuse('load', 'x', '--where', '1', '--tokens', 'n=2', code=2, says='mutually exclusive')


def a_shuffle_is_of_what_is_left():
    _dataset()
    one = _selected('derive', ['--shuffle', '1'])
    assert one != list(range(LENGTH)) and sorted(one) == list(range(LENGTH))
    run('derive', 'x', 'some', '--range', '5:', '--shuffle', '1')
    some = [row['n'] for row in run('get', 'some', ':').lines]
    assert some != list(range(5, LENGTH)) and sorted(some) == list(range(5, LENGTH))

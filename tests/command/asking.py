"""bags sql, SQLite's extension, and --where."""
import base64
import json
import os
import pathlib
import random
import shutil
import sqlite3

import harness
from harness import has_sql, pack, refuse, run

QUICK = 'BAGS_QUICK' in os.environ
SPEC = 'id=utf8,label=int(2),score=float32,words=utf8[],photo=bytes'


def _pack(count=60):
    pack([{'id': f'x{i}', 'label': i % 7, 'score': i / 4, 'words': ['w"', 'é'][:i % 3],
           'photo': {'base64': 'iVBORw0KGgoAAAANSUhEUgAAAAIAAAAD'}}
          for i in range(count)], SPEC, 'src', '--shard-length', 25)


def queries_are_printed():
    if not has_sql():
        return
    _pack()
    out = run('sql', 'src', 'SELECT label, count(*) AS n FROM data GROUP BY 1 LIMIT 2')
    assert out.out == b'label  n\n    0  9\n    1  9\n', out.out
    rows = run('sql', 'src', 'SELECT rowid, *, width(photo) w, height(photo) h, '
               'length(photo) AS l FROM data WHERE rowid = 4', '--json').lines
    assert rows == [{'rowid': 4, 'id': 'x4', 'label': 4, 'score': 1.0, 'words': '["w\\""]',
                     'photo': {'base64': 'iVBORw0KGgoAAAANSUhEUgAAAAIAAAAD'}, 'w': 2,
                     'h': 3, 'l': 24}]
    out = run('sql', 'src', "SELECT id, 'a,\"b' AS x, NULL, '' FROM data LIMIT 1", '--csv')
    assert out.out == b'id,x,NULL,\'\'\r\nx0,"a,""b",,""\r\n', out.out
    out = run('sql', 'src', 'SELECT rowid FROM data WHERE score >= 14.5', '--rows')
    assert out.out == b'58\n59\n'
    refuse('sql', 'src', 'SELECT id FROM data', '--rows', says='not the number')
    fields = 'fields are id, label, photo, score, words'
    refuse('sql', 'src', 'SELECT "ids" FROM data',
           says='SQL: no such column: ids; did you mean "id"? The ' + fields)
    refuse('sql', 'src', 'SELECT d.lable FROM data d', says='did you mean "label"?')
    refuse('sql', 'src', 'SELECT id FROM data WHERE id = "x3"',
           says=f"no such column: x3; the {fields}; text needs 'single quotes'")
    refuse('sql', 'src', 'SELECT id FROM src', says='no such table: src; the dataset is the table data')
    refuse('sql', 'src', 'SELECT id, id FROM data', '--json', code=2)


def whatever_writes_is_refused():
    if not has_sql():
        return
    _pack(3)
    before = harness.files('.')
    for query in ["ATTACH 'x.db' AS x", "VACUUM INTO 'x.db'", 'CREATE TABLE t(a)',
                  'CREATE TEMP TABLE t AS SELECT 1', 'DROP TABLE data', 'BEGIN',
                  'DELETE FROM data', 'INSERT INTO data(id) VALUES(1)',
                  'UPDATE data SET id = 1', 'PRAGMA user_version = 1', 'SELECT 1; SELECT 2',
                  "SELECT load_extension('x')"]:
        refuse('sql', 'src', query, says='SQL')
    assert harness.files('.') == before


def where_is_one_expression():
    if not has_sql():
        return
    _pack()
    run('derive', 'src', 'out', '--where', 'label = 3 AND score > 5 -- remark')
    ids = [r['id'] for r in run('get', 'out', ':').lines]
    assert ids == [f'x{i}' for i in range(60) if i % 7 == 3 and i / 4 > 5]
    for bad in ['1) LIMIT (3', '1 LIMIT 2', '1, 2', '1; SELECT 1', 'count(*)', '"no" = 1',
                '', '1) UNION SELECT (1', '1) OR (1', '0) OR likely(1', '(1', "')') OR ('('",
                '"id") OR ("id"', '[id]) OR ([id]', '1 /* ( */ ) OR (1', '1 -- (\n ) OR (1',
                'SELECT 1', 'SELECT rowid FROM data WHERE label = 3', 'VALUES(1)', '-- 1', "'"]:
        refuse('derive', 'src', 'bad', '--where', bad, says='SQL')
        assert not os.path.exists('bad')
    for good, count in [("id <> ')' AND (label = 3)", 9), ('label = 3 /* ) */', 9), ('1 -- )', 60),
                        ("[label] = 3 OR id = ')'')('", 9), ('label = (SELECT 1 + (2))', 9)]:
        run('derive', 'src', 'good', '--where', good)
        assert len(run('get', 'good', ':').lines) == count, good
        shutil.rmtree('good')
    refuse('derive', 'src', 'bad', '--where', '1) OR (1', says='SQL: not one expression: 1) OR (1; ')
    for bad, name in [('label = ?', '?'), ('label = :x AND score > 1', ':x'), ('label = @y', '@y'),
                      ('label = ?2', '?2'), ("id = '?' OR label = $z", '$z')]:
        for words in [('derive', 'src', 'bad', '--where', bad), ('load', 'src', '--where', bad),
                      ('sql', 'src', f'SELECT id FROM data WHERE {bad}')]:
            refuse(*words, says=f'SQL: the parameter {name} has no value; write')
    refuse('derive', 'src', 'bad', '--where', 'lable = 3', says='did you mean "label"?')
    refuse('load', 'src', '--where', 'label ==', says='; --where takes one expression, such as')
    pack([{'rowid': 5 + i, 'A': i, 'a': 9 - i} for i in range(4)],
         'rowid=int(4),A=int(4),a=int(4)', 'names')
    run('derive', 'names', 'found', '--where', 'rowid = 7 AND a_2 = 7')
    assert run('get', 'found', ':').lines == [{'A': 2, 'a': 7, 'rowid': 7}]
    out = run('sql', 'names', 'SELECT _rowid_ FROM data WHERE rowid = 8', '--rows')
    assert out.out == b'3\n'


def numbers_of_several_datasets_continue():
    if not has_sql():
        return
    for path, first in [('a', 0), ('b', 5)]:
        pack([{'n': first + i} for i in range(5)], 'n=int(2)', path)
    for where, rows in [('rowid >= 3', [3, 4, 5, 6, 7, 8, 9]), ('rowid = 7', [7]),
                        ('rowid = n', list(range(10))), ('rowid < 6 AND rowid > 4.5', [5]),
                        ('rowid <= -1', []), ('rowid > 8 OR n = 0', [0, 9]),
                        ('rowid > -9223372036854775808', list(range(10))),
                        ('rowid IN (2, 7, 11)', [2, 7])]:
        run('derive', 'a', 'b', 'out', '--copy', '--where', where)
        assert [r['n'] for r in run('get', 'out', ':').lines] == rows, where
        shutil.rmtree('out')


def a_number_of_another_size_is_an_error():
    if not has_sql():
        return
    for type, size in [('int(2)', 3), ('int(2)', 1), ('int(4,big)', 3), ('u64', 7), ('i64', 9)]:
        pack([{'n': {'base64': 'AQEBAQEBAQEB'[:4 * (size // 3)] + ['', 'AQ==', 'AQE='][size % 3]}}],
             'n=bytes', 'bad')
        pathlib.Path('bad/spec.json').write_text(json.dumps({'n': type}))
        refuse('get', 'bad', '0')
        for query in ['SELECT n FROM data', 'SELECT rowid FROM data WHERE n > 0']:
            refuse('sql', 'bad', query, says=('bad: field "n": datapoint 0: ', 'size'))
        shutil.rmtree('bad')


def random_queries_equal_those_of_a_real_table():
    extension = pathlib.Path(harness.PROGRAM).parent / 'bags-sql.so'
    if not has_sql() or not extension.exists():
        return
    _pack(200)
    db = sqlite3.connect(':memory:')
    db.enable_load_extension(True)
    db.load_extension(str(extension))
    db.execute("CREATE VIRTUAL TABLE t USING bags('src')")
    db.execute('CREATE TABLE r AS SELECT rowid AS n, * FROM t')
    chance = random.Random(1)
    columns = ['label', 'score', 'id', 'words', 'rowid']
    values = ['3', '30', '3.0', '2.5', "'x7'", "'3'", '-1', 'NULL', '1e300', '200',
              '9223372036854775807', '-9223372036854775808']

    def compare():
        return (f"{chance.choice(['', 'NOT '])}{chance.choice(columns)} "
                f"{chance.choice(['=', '>', '<', '>=', '<=', '<>'])} "
                f"{chance.choice(values + columns)}")
    for _ in range(200 if QUICK else 3000):
        where = compare()
        for _ in range(chance.randrange(4)):
            where += f" {chance.choice(['AND', 'OR'])} {compare()}"
        order = chance.choice(['rowid', 'rowid DESC', 'score, rowid'])
        query = f'SELECT rowid, id, label, score, words FROM t WHERE {where} ORDER BY {order}'
        same = query.replace(' t ', ' r ').replace('rowid', 'n')
        assert db.execute(query).fetchall() == db.execute(same).fetchall(), query
    joined = 'SELECT count(*) FROM {0} a JOIN {0} b ON a.label = b.label AND a.id < b.id'
    assert db.execute(joined.format('t')).fetchall() == \
        db.execute(joined.format('r')).fetchall()


def no_query_leaves_or_reads_files():
    if not has_sql():
        return
    _pack(3)
    before = harness.files('.')
    for query in ['VACUUM', 'CREATE VIEW v AS SELECT 1', 'CREATE TEMP TABLE t(a)', 'ANALYZE',
                  "CREATE VIRTUAL TABLE t USING bags_reader", 'REPLACE INTO data(id) VALUES(1)',
                  "PRAGMA temp_store_directory = '/tmp'", 'PRAGMA journal_mode', 'SAVEPOINT a',
                  'SELECT * FROM pragma_database_list', "SELECT writefile('x', 'y')",
                  "SELECT readfile('/etc/passwd')", "SELECT edit('x')", 'DETACH main',
                  'ALTER TABLE data RENAME TO d', 'SELECT * FROM sqlite_dbpage',
                  'SELECT randomblob(2000000000)', ';', '/* nothing */']:
        refuse('sql', 'src', query, says='SQL')
        refuse('derive', 'src', 'out', '--where', query, says='SQL')
    assert harness.files('.') == before
    # A sequence is JSON.
    out = run('sql', 'src', 'SELECT value FROM data, json_each(words)', '--csv')
    assert out.out == 'value\r\n"w"""\r\n"w"""\r\né\r\n'.encode(), out.out


def _spec(names):
    pathlib.Path('names.json').write_text(json.dumps({n: 'int(4)' for n in names}))
    return 'names.json'


def names_of_fields_are_columns():
    if not has_sql():
        return
    names = ['select', 'a b', 'it\'s', 'x]y', '[z', 'é', 'É', 'a', 'A', 'A_2', '日本', '%s', '1',
             'rowid', '_rowid_', 'table.x', '--']
    pack([{n: i for i, n in enumerate(names)}], _spec(names), 'names')
    quoted = ', '.join('"%s"' % ('a_3' if n == 'a' else n) for n in names)
    got = run('sql', 'names', f'SELECT {quoted}, oid AS at FROM data', '--json').lines
    assert list(got[0].values()) == [*range(len(names)), 0], got
    assert run('sql', 'names', 'SELECT * FROM data', '--csv').out.count(b'\r\n') == 2
    run('derive', 'names', 'out', '--where', '"select" = 0 AND "it\'s" = 2 AND oid = 0')
    pack([{'rowid': 1, '_rowid_': 2, 'oid': 3}], 'rowid=int,_rowid_=int,oid=int', 'hidden')
    refuse('derive', 'hidden', 'no', '--where', '1', says='hide')


def numbers_are_exact_or_an_error():
    if not has_sql():
        return
    top = 2 ** 64 - 1
    pack([{'u': n, 'i': -n if n <= 2 ** 63 else 0, 'f': f, 'h': f, 's': [n]}
          for n, f in [(0, 0.5), (2 ** 63 - 1, float('nan')), (2 ** 53 + 1, float('inf')),
                       (top, -0.0)]],
         'u=int(8),i=i64,f=float64,h=float16,s=u64[]', 'x')
    out = run('sql', 'x', 'SELECT u, i, f, h FROM data WHERE rowid < 3', '--csv').out
    assert out == (b'u,i,f,h\r\n0,0,0.5,0.5\r\n9223372036854775807,-9223372036854775807,,\r\n'
                   b'9007199254740993,-9007199254740993,Infinity,Infinity\r\n'), out
    for query in ['SELECT u FROM data', 'SELECT sum(u > 5) FROM data', 'SELECT u, * FROM data',
                  'SELECT rowid FROM data WHERE u > 5']:
        refuse('sql', 'x', query, says=('x: field "u": datapoint 3: ', '2^63-1'))
    refuse('derive', 'x', 'no', '--where', 'u > 5', says='x: field "u": datapoint 3: ')
    for where, rows in [('f IS NULL', [1]), ('f > 1', [2]), ('NOT f > 1', [0, 3]), ('f = 0', [3]),
                        ('f <> 0.5', [2, 3]), ('i = -9007199254740993', [2]),
                        ('i < -9007199254740992.0', [1, 2]), ('h IS NOT NULL', [0, 2, 3])]:
        out = run('sql', 'x', f'SELECT rowid FROM data WHERE {where}', '--rows').out
        assert out.decode().split() == [str(r) for r in rows], (where, out)
    assert run('sql', 'x', 'SELECT s FROM data WHERE rowid = 1', '--csv').out == \
        b's\r\n[9223372036854775807]\r\n'


def items_of_sequences_are_values_or_an_error():
    if not has_sql():
        return
    chance = random.Random(5)
    reals = [1.7976931348623157e308, 5e-324, 0.1, -0.0, 1e22, 123456789012345680.0, 2.0,
             *(chance.uniform(1, 10) * 10.0 ** e for e in range(-300, 308, 3))]
    spec = {'d': 'array(float64)[]', 'f': 'array(float32)[]', 'p': 'array(float32,2)[]',
            'm': 'array(int16,-1,2)[]', 'a': 'array[]', 'b': 'array(bool,2)[]',
            'c': 'array(complex64,1)[]', 'u': 'array(uint64,2)[]', 'raw': 'bytes[]'}
    row = {'d': reals + [float('inf'), float('-inf'), float('nan')], 'f': [0.5, float('-inf'), 0.1],
           'p': [[1, float('inf')], [float('nan'), 2.5]], 'm': [[[1, -2], [3, 4]], []],
           'a': [{'dtype': 'float64', 'list': [[1, 2.5]]}, {'dtype': 'uint8', 'list': [7]}],
           'b': [[True, False]], 'c': [['1+2j']], 'u': [[1, 2 ** 63 - 1]],
           'raw': [{'base64': 'AQ=='}]}
    pathlib.Path('spec').write_text(json.dumps(spec))
    pack([row], 'spec', 'x')
    got = run('sql', 'x', 'SELECT * FROM data', '--json').lines[0]
    values = json.loads(got['d'])
    assert [repr(v) for v in values] == [repr(v) for v in row['d'][:-1]] + ['None'], values
    assert '9e999, -9e999, null]' in got['d'] and ', -0.0, ' in got['d'], got['d']
    assert got['f'] == '[0.5, -9e999, 0.10000000149011612]', got['f']
    assert got['p'] == '[[1.0, 9e999], [null, 2.5]]', got['p']
    assert got['m'] == '[[[1, -2], [3, 4]], []]', got['m']
    assert got['a'] == '[[[1.0, 2.5]], [7]]', got['a']
    assert got['b'] == '[[1, 0]]' and got['u'] == '[[1, 9223372036854775807]]', got
    assert got['c'] == '[{"base64": "AACAPwAAAEA="}]', got['c']
    assert got['raw'] == '[{"base64": "AQ=="}]', got['raw']
    out = run('sql', 'x', "SELECT max(value) a, min(value) b, json_extract(p, '$[1][1]') c, "
              "json_extract(m, '$[0][1][0]') d FROM data, json_each(d)", '--csv').out
    assert out == b'a,b,c,d\r\nInfinity,-Infinity,2.5,3\r\n', out
    if 'zstd' in run('--version').out.decode().split():
        del row['raw'], got['raw'], spec['raw'] # base64 would be the frame
        pathlib.Path('spec').write_text(json.dumps(
            {k: 'zstd(%s)[]' % v[:-2].replace('(', ',').replace(')', '') for k, v in spec.items()}))
        pack([row], 'spec', 'small')
        assert run('sql', 'small', 'SELECT * FROM data', '--json').lines == [got]
    for type, item, says in [('u64', 'f' * 16, '2^63-1'), ('int', 'f' * 16, '2^63-1'),
                             ('array(uint64,2)', '00' * 8 + 'ff' * 8, '2^63-1'),
                             ('utf8', '61ff', 'invalid UTF-8 (offset 1)'),
                             ('int(2)', '01', 'size'), ('array(float32,2)', '01' * 7, 'size'),
                             ('array(float32)', '01' * 3, 'size')]:
        pack([{'s': [{'base64': base64.b64encode(bytes.fromhex(item)).decode()}]}], 's=bytes[]', 'bad')
        pathlib.Path('bad/spec.json').write_text(json.dumps({'s': type + '[]'}))
        refuse('sql', 'bad', 'SELECT s FROM data', says=('bad: field "s": datapoint 0: item 0: ', says))
        refuse('derive', 'bad', 'no', '--where', "s = '[]'", says='datapoint 0: item 0: ')
        shutil.rmtree('bad')


def too_many_fields_are_an_error_that_states_the_limit():
    if QUICK or not has_sql():
        return
    names = [f'f{i}' for i in range(2001)]
    pack([dict.fromkeys(names, 1)], _spec(names), 'many')
    says = 'many: too many fields for a table of SQL (2001, maximum 2000)'
    refuse('sql', 'many', 'SELECT f0 FROM data', says=says)
    refuse('derive', 'many', 'no', '--where', 'f0 = 1', says=says)


def empty_datasets_are_empty_tables():
    if not has_sql():
        return
    pack([], 'a=int,b=utf8[]', 'none')
    assert run('sql', 'none', 'SELECT count(*), max(a), min(b) FROM data', '--csv').out == \
        b'count(*),max(a),min(b)\r\n0,,\r\n'
    assert run('sql', 'none', 'SELECT * FROM data WHERE a = 1', '--csv').out == b'a,b\r\n'
    assert run('sql', 'none', 'SELECT * FROM data', '--json').out == b''
    assert run('sql', 'none', 'SELECT a FROM data', '--rows').out == b''


def damage_is_an_error_that_names_it():
    if not has_sql():
        return
    _pack()
    path = pathlib.Path('src/000001/id.bag')
    data = bytearray(path.read_bytes())
    data[0] = 0xff
    path.write_bytes(data)
    for query in ['SELECT id FROM data', "SELECT rowid FROM data WHERE id = 'x1'",
                  'SELECT max(id) FROM data', 'SELECT id FROM data WHERE rowid = 25']:
        refuse('sql', 'src', query, says=('src', 'field "id": datapoint 25: invalid UTF-8'))
    refuse('derive', 'src', 'no', '--where', "id = 'x1'", says='datapoint 25')
    refuse('load', 'src', '--where', "id = 'x1'", says='datapoint 25')
    assert len(run('sql', 'src', 'SELECT label FROM data', '--csv').out.split()) == 61
    path = pathlib.Path('src/000000/score.bag')
    data = bytearray(path.read_bytes())
    data[-16] = 255 # an entry of the table
    path.write_bytes(data)
    for query in ['SELECT score FROM data', 'SELECT rowid FROM data WHERE score > 1']:
        refuse('sql', 'src', query, says='src/000000/score.bag: blob 23: ')


def compressed_values_are_those_of_their_type():
    if not has_sql() or 'zstd' not in run('--version').out.decode().split():
        return
    spec = 't=utf8,n=int(4),f=float32,w=utf8[],i=i64,a=int16(3)'
    rows = [{'t': f'a{i % 5}', 'n': i, 'f': i / 2, 'w': ['x', 'y'][:i % 3], 'i': -i,
             'a': [i, -1, 2]} for i in range(1200)]
    pack(rows, spec, 'plain', '--shard-length', 500)
    pack(rows, 't=zstd(utf8),n=zstd(int,4,big),f=zstd(array,float32),w=zstd(utf8)[],'
         'i=zstd(i64),a=zstd(array,int16,3)', 'small', '--shard-length', 500)
    extension = pathlib.Path(harness.PROGRAM).parent / 'bags-sql.so'
    db = sqlite3.connect(':memory:')
    if extension.exists() and 'asan' not in str(extension):
        db.enable_load_extension(True)
        db.load_extension(str(extension))
        db.execute("CREATE VIRTUAL TABLE data USING bags('small')")
    for query in ['SELECT * FROM data', 'SELECT t, count(*), sum(n), sum(f) FROM data WHERE n > '
                  "100 AND f < 300.5 AND i > -900 AND t <> 'a3' GROUP BY t",
                  'SELECT rowid, t, w FROM data WHERE rowid % 250 = 7 ORDER BY rowid DESC',
                  'SELECT n FROM data WHERE rowid = 1199']:
        expected = run('sql', 'plain', query, '--csv').out
        assert run('sql', 'small', query, '--csv').out == expected, query
        if extension.exists() and 'asan' not in str(extension):
            assert len(db.execute(query).fetchall()) == expected.count(b'\r\n') - 1


def keys_are_looked_up_and_never_change_an_answer():
    if not has_sql():
        return
    chance = random.Random(7)
    rows = [{'id': f'x{chance.randrange(400)}', 'n': chance.randrange(300), 'raw': {'base64': 'eHg='},
             'f': chance.randrange(300) / 4 - 9, 'i': chance.randrange(-99, 99)}
            for _ in range(900)]
    rows[3]['id'], rows[4]['f'], rows[5]['n'] = '', -0.0, 2 ** 63 - 1
    spec = 'id=utf8,n=int(8),f=float32,i=i64,raw=bytes'
    pack(rows, spec, 'plain', '--shard-length', 400)
    pack(rows, spec, 'keyed', '--shard-length', 400)
    for field in ['id', 'n', 'f', 'i', 'raw']:
        run('index', 'keyed', field)
    plan = run('sql', 'keyed', "EXPLAIN QUERY PLAN SELECT * FROM data WHERE id = 'x7'").out
    assert b'INDEX 1:' in plan, plan
    plan = run('sql', 'plain', "EXPLAIN QUERY PLAN SELECT * FROM data WHERE id = 'x7'").out
    assert b'INDEX 0:' in plan, plan
    wheres = ["id = 'x7'", "id = 'X7' COLLATE NOCASE", "id = ''", 'id = 7', "id = x'7837'", 'n = 7',
              'n = 7.0', "n = '7'", 'n = 7.5', 'n = -1', 'n = 9223372036854775807', 'f = 0',
              'f = -0.0', 'f = 0.1', 'f = 2.25', 'f = NULL', 'i = -7', 'i = 7 AND rowid < 500',
              'i = 7 AND rowid >= 500 AND n > 50', "id = 'x7' AND i > 0", "id IN ('x1', 'x2', 3)",
              "id = 'x7' OR n = 8", "raw = x'7878'", "raw = 'xx'", 'n = i', "id <> 'x7' AND n = 3",
              "n = 7 AND rowid = 9", 'f = 16777217', 'i = 1e300', "id > 'x390' AND f = 3"]
    for where in wheres:
        query = f'SELECT rowid, id, n, f, i FROM data WHERE {where} ORDER BY rowid'
        expected = run('sql', 'plain', query, '--csv').out
        assert run('sql', 'keyed', query, '--csv').out == expected, where
    joined = ('SELECT a.rowid, b.rowid FROM data a JOIN data b ON a.id = b.id AND a.n < b.n '
              'ORDER BY 1, 2')
    assert run('sql', 'keyed', joined, '--csv').out == run('sql', 'plain', joined, '--csv').out
    # An index that is damaged, or of other data, is not used.
    path = pathlib.Path('keyed/000000/index/id.bag')
    intact = path.read_bytes()
    expected = run('sql', 'plain', "SELECT rowid FROM data WHERE id = 'x7'", '--rows').out
    for at in [*range(0, len(intact), 997), len(intact) - 9]:
        data = bytearray(intact)
        data[at] ^= 0x55
        path.write_bytes(data)
        assert run('sql', 'keyed', "SELECT rowid FROM data WHERE id = 'x7'",
                   '--rows').out == expected, at
    path.write_bytes(intact[:100])
    assert run('sql', 'keyed', "SELECT rowid FROM data WHERE id = 'x7'", '--rows').out == expected
    pack([{**row, 'id': 'x7'} for row in rows], spec, 'other', '--shard-length', 400)
    os.makedirs('other/000000/index')
    for file in pathlib.Path('keyed/000000/index').iterdir():
        data = intact if file.name == 'id.bag' else file.read_bytes()
        pathlib.Path('other/000000/index', file.name).write_bytes(data)
    assert run('sql', 'other', "SELECT count(*) FROM data WHERE id = 'x7'", '--csv').out == \
        b'count(*)\r\n900\r\n'

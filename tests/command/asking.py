"""bags sql, SQLite's extension, and --where."""
import os
import pathlib
import random
import sqlite3

import harness
from harness import pack, refuse, run

QUICK = 'BAGS_QUICK' in os.environ
SPEC = 'id=utf8,label=int(2),score=float32,words=utf8[],photo=bytes'


def _pack(count=60):
    pack([{'id': f'x{i}', 'label': i % 7, 'score': i / 4, 'words': ['w"', 'é'][:i % 3],
           'photo': {'base64': 'iVBORw0KGgoAAAANSUhEUgAAAAIAAAAD'}}
          for i in range(count)], SPEC, 'src', '--shard-length', 25)


def _has_sql():
    return 'sql' in run('--version').out.decode().split()


def queries_are_printed():
    if not _has_sql():
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
    refuse('sql', 'src', 'SELECT "ids" FROM data', says='no such column')
    refuse('sql', 'src', 'SELECT id, id FROM data', '--json', code=2)


def whatever_writes_is_refused():
    if not _has_sql():
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
    if not _has_sql():
        return
    _pack()
    run('derive', 'src', 'out', '--where', 'label = 3 AND score > 5 -- remark')
    ids = [r['id'] for r in run('get', 'out', ':').lines]
    assert ids == [f'x{i}' for i in range(60) if i % 7 == 3 and i / 4 > 5]
    for bad in ['1) LIMIT (3', '1 LIMIT 2', '1, 2', '1; SELECT 1', 'count(*)', '"no" = 1',
                '', '1) UNION SELECT (1']:
        refuse('derive', 'src', 'bad', '--where', bad, says='SQL')
        assert not os.path.exists('bad')
    pack([{'rowid': 5 + i, 'A': i, 'a': -i if i < 0 else 9 - i} for i in range(4)],
         'rowid=int(4),A=int(4),a=int(4)', 'names')
    run('derive', 'names', 'found', '--where', 'rowid = 7 AND a_2 = 7')
    assert run('get', 'found', ':').lines == [{'A': 2, 'a': 7, 'rowid': 7}]
    out = run('sql', 'names', 'SELECT _rowid_ FROM data WHERE rowid = 8', '--rows')
    assert out.out == b'3\n'


def random_queries_equal_those_of_a_real_table():
    extension = pathlib.Path(harness.PROGRAM).parent / 'bags-sql.so'
    if not _has_sql() or not extension.exists():
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

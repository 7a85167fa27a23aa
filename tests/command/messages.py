"""Writers of MCAP, CDR, protocol buffers and their schemas, and the fields that messages become:
independent of formats/import."""
import msgpack
import struct
import zlib

FORMATS = {'bool': '?', 'uint8': 'B', 'int8': 'b', 'uint16': 'H', 'int16': 'h', 'uint32': 'I',
           'int32': 'i', 'uint64': 'Q', 'int64': 'q', 'float32': 'f', 'float64': 'd'}


class Node:
    """A member of messages: number, text, bytes, list or struct."""

    def __init__(self, kind, name='', dtype=None, members=(), item=None, length=None, most=None,
                 proto=None, optional=False, one_of=None):
        self.kind, self.name, self.dtype = kind, name, dtype
        self.members, self.item, self.length, self.most = list(members), item, length, most
        self.proto, self.optional, self.one_of = proto, optional, one_of
        self.absent = self.plan = self.field = None


# ---- the fields of messages

def learn(node, value, in_list=False):
    """Values: numbers, str, bytes, lists, dicts; None if missing."""
    if value is None:
        node.absent = node.absent or in_list
    elif node.kind == 'list':
        for item in value:
            learn(node.item, item, True)
    elif node.kind == 'struct':
        for member in node.members:
            learn(member, value[member.name], in_list)


def scalar_type(dtype):
    if 'int' in dtype:
        return 'u64' if dtype[0] == 'u' else 'i64'
    return f'array({dtype})'


def plan(node, path, spec, in_list=False):
    node.field, node.plan = path, 'whole'
    if in_list and node.absent:
        node.plan, spec[path] = 'packed', 'msgpack[]'
    elif node.kind == 'number':
        spec[path] = scalar_type(node.dtype) + '[]'
    elif node.kind in ('text', 'bytes'):
        spec[path] = 'utf8[]' if node.kind == 'text' else 'bytes[]'
    elif node.kind == 'struct':
        node.plan = 'parts'
        for member in node.members:
            plan(member, f'{path}.{member.name}', spec, in_list)
    elif node.item.kind == 'number' and not node.item.absent:
        spec[path] = f'array({node.item.dtype},{-1 if node.length is None else node.length})[]'
    elif in_list:
        node.plan, spec[path] = 'packed', 'msgpack[]'
    else:
        node.plan = 'parts'
        plan(node.item, path, spec, True)


def element(dtype, value):
    return struct.pack('<' + FORMATS[dtype], value)


def packable(node, value):
    if value is None:
        return None
    if node.kind == 'struct':
        return {m.name: packable(m, value[m.name]) for m in node.members
                if value[m.name] is not None}
    if node.kind == 'list':
        return [packable(node.item, item) for item in value]
    if node.dtype == 'float32':
        return struct.unpack('<f', struct.pack('<f', value))[0]
    return value


def fill(node, value, out, in_list=False):
    """Append the blobs of a message to those of the fields."""
    items = out.setdefault(node.field, []) if node.plan != 'parts' else None
    if node.plan == 'packed':
        if value is not None or in_list:
            items.append(msgpack.packb(packable(node, value)))
    elif value is None:
        pass
    elif node.kind == 'struct':
        for member in node.members:
            fill(member, value[member.name], out, in_list)
    elif node.kind == 'list' and node.plan == 'parts':
        for item in value:
            fill(node.item, item, out, True)
    elif node.kind == 'list':
        items.append(b''.join(element(node.item.dtype, item) for item in value))
    elif node.kind == 'number':
        items.append(element({'i64': 'int64', 'u64': 'uint64'}.get(
            scalar_type(node.dtype), node.dtype), value))
    else:
        items.append(value.encode() if node.kind == 'text' else value)


# ---- CDR

def cdr(node, value, little=True):
    """A message: 4 bytes, then the members, aligned from there."""
    out = bytearray()
    order = '<' if little else '>'

    def number(format, value):
        size = struct.calcsize(format)
        out.extend(bytes(-len(out) % size))
        out.extend(struct.pack(order + format, value))

    def put(node, value):
        if node.kind == 'number':
            number(FORMATS[node.dtype], value)
        elif node.kind == 'text':
            data = value.encode() + b'\0'
            number('I', len(data))
            out.extend(data)
        elif node.kind == 'list':
            if node.length is None:
                number('I', len(value))
            for item in value:
                put(node.item, item)
        else:
            for member in node.members:
                put(member, value[member.name])
            if not node.members:
                out.append(0)

    put(node, value)
    return bytes([0, little, 0, 0]) + bytes(out)


def ros2(root, name='test_msgs/msg/Root', rng=None):
    """The definition of a message and of the types in it."""
    definitions = []

    def type_of(node):
        if node.kind == 'list':
            bound = '' if node.length is None and node.most is None else \
                str(node.length) if node.length is not None else f'<={node.most}'
            return f'{type_of(node.item)}[{bound}]'
        if node.kind == 'text':
            return 'string' if node.most is None else f'string<={node.most}'
        if node.kind == 'number':
            aliases = {'uint8': ['uint8', 'byte', 'char']}.get(node.dtype, [node.dtype])
            return rng.choice(aliases) if rng else aliases[0]
        own = f'T{len(definitions)}'
        definitions.append(None)
        definitions[int(own[1:])] = (f'other_msgs/{own}', lines(node))
        return f'other_msgs/{rng.choice(["", "msg/"]) if rng else ""}{own}'

    def lines(node):
        made = ['# a comment', 'int32 CONSTANT=-5', 'string<=7 WORD = "a#b"', '']
        for member in node.members:
            default = ' 1 # one' if member.kind == 'number' and member.dtype != 'bool' else ''
            made.append(f'{type_of(member)}  {member.name}{default}')
        return '\n'.join(made)

    text = lines(root)
    for full, definition in definitions:
        text += f'\n{"=" * 80}\nMSG: {full}\n{definition}'
    return name, 'ros2msg', text.encode() + b'\n'


IDL = {'bool': ['boolean'], 'uint8': ['uint8', 'octet', 'char'], 'int8': ['int8'],
       'uint16': ['uint16', 'unsigned short'], 'int16': ['int16', 'short'],
       'uint32': ['uint32', 'unsigned long', 'Colour'], 'int32': ['int32', 'long'],
       'uint64': ['uint64', 'unsigned long long'], 'int64': ['int64', 'long long'],
       'float32': ['float'], 'float64': ['double']}


def idl(root, rng):
    """The same in IDL: fixed arrays are typedefs, or follow the name."""
    files = []

    def file(node, name):
        typedefs, members = [], []

        def type_of(node):
            if node.kind == 'number':
                return rng.choice(IDL[node.dtype])
            if node.kind == 'text':
                return 'string' if node.most is None else f'string<{node.most}>'
            if node.kind == 'struct':
                inner = f'T{len(files)}_{len(members)}_{len(typedefs)}'
                file(node, inner)
                return rng.choice([inner, f'test_msgs::msg::{inner}'])
            if node.length is None:
                bound = '' if node.most is None else f', {node.most}'
                return f'sequence<{type_of(node.item)}{bound}>'
            item, own = type_of(node.item), f'{name}_{len(typedefs)}'
            typedefs.append(f'typedef {item} {own}[{node.length}];')
            return own

        for member in node.members or [Node('number', 'structure_needs_at_least_one_member',
                                            'uint8')]:
            if member.kind == 'list' and member.length is not None and rng.random() < 0.5:
                line = f'{type_of(member.item)} {member.name}[{member.length}];'
            else:
                line = f'{type_of(member)} {member.name};'
            members.append('@default (value=")") @verbatim (language="comment", text=\n'
                           '"a (\\" struct" "b")\n' + line + ' // a comment }')
        files.append((name, f"""#include "x.idl"
module test_msgs {{ module msg {{
module {name}_Constants {{ const string A = "}}"; const int8 B = -5; }};
{" ".join(typedefs)}
/* struct */ @final struct {name} {{
{chr(10).join(members)}
}}; }}; }};"""))

    file(root, 'Root')
    files.append(('Colour', 'module test_msgs { module msg { enum Colour { RED, GREEN }; }; };'))
    text = '\n'.join(f'{"=" * 80}\nIDL: test_msgs/msg/{name}\n{text}'
                     for name, text in files[::-1])
    return 'test_msgs/msg/Root', 'ros2idl', text.encode()


# ---- protocol buffers

TYPES = {'double': (1, 'float64'), 'float': (2, 'float32'), 'int64': (3, 'int64'),
         'uint64': (4, 'uint64'), 'int32': (5, 'int32'), 'fixed64': (6, 'uint64'),
         'fixed32': (7, 'uint32'), 'bool': (8, 'bool'), 'string': (9, None),
         'message': (11, None), 'bytes': (12, None), 'uint32': (13, 'uint32'),
         'enum': (14, 'int32'), 'sfixed32': (15, 'int32'), 'sfixed64': (16, 'int64'),
         'sint32': (17, 'int32'), 'sint64': (18, 'int64')}


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def part(number, value):
    """A field: an int is a varint; bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def coded(proto, value):
    """The wire type of a number, and its bytes."""
    if proto in ('sint32', 'sint64'):
        return 0, varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if proto in ('double', 'fixed64', 'sfixed64'):
        return 1, element(TYPES[proto][1], value)
    if proto in ('float', 'fixed32', 'sfixed32'):
        return 5, element(TYPES[proto][1], value)
    return 0, varint(int(value))


def protobuf(node, value, rng=None, proto3=True):
    """A message; its fields in any order, lists of numbers packed or not."""
    fields = []
    for number, member in enumerate(node.members, 1):
        item = member.item if member.kind == 'list' else member
        given = value[member.name]
        if given is None:
            continue
        values = given if member.kind == 'list' else [given]
        out = b''
        if item.kind == 'number' and member.kind == 'list' and values and \
                (not rng or rng.random() < 0.5):
            out = part(number, b''.join(coded(item.proto, one)[1] for one in values))
        else:
            for one in values:
                implicit = proto3 and not member.optional and member.kind != 'list'
                if implicit and item.kind != 'struct' and one in (0, '', b'') and \
                        str(one) != '-0.0':
                    continue
                if item.kind == 'number':
                    wire, data = coded(item.proto, one)
                    out += varint(number << 3 | wire) + data
                elif item.kind == 'struct':
                    out += part(number, protobuf(item, one, rng, proto3))
                else:
                    out += part(number, one.encode() if item.kind == 'text' else one)
        fields.append(out)
    if rng:
        rng.shuffle(fields)
    return b''.join(fields)


def descriptors(root, name='Root', package='test', proto3=True):
    """A FileDescriptorSet of two files."""
    enum = part(1, b'Colour') + part(2, part(1, b'RED') + part(2, 0))
    files = [part(1, b'e.proto') + part(2, b'other') + part(5, enum) + part(12, b'proto3')]

    def message(node, name, full):
        out, one_ofs = part(1, name.encode()), []
        for number, member in enumerate(node.members, 1):
            item = member.item if member.kind == 'list' else member
            field = part(1, member.name.encode()) + part(3, number)
            field += part(4, 3 if member.kind == 'list' else 1)
            field += part(5, TYPES[item.proto][0])
            if item.kind == 'struct':
                inner = f'M{number}'
                out += part(3, message(item, inner, f'{full}.{inner}'))
                field += part(6, f'.{full}.{inner}'.encode())
            if item.proto == 'enum':
                field += part(6, b'.other.Colour')
            if member.one_of:
                if member.one_of not in one_ofs:
                    one_ofs.append(member.one_of)
                field += part(9, one_ofs.index(member.one_of))
            elif member.optional and proto3 and item.kind != 'struct':
                one_ofs.append('_' + member.name)
                field += part(9, len(one_ofs) - 1) + part(17, 1)
            out += part(2, field)
        for one_of in one_ofs:
            out += part(8, part(1, one_of.encode()))
        return out

    file = part(1, b'a.proto') + part(2, package.encode()) + part(3, b'e.proto')
    file += part(4, message(root, name, f'{package}.{name}'))
    files.append(file + (part(12, b'proto3') if proto3 else b''))
    return f'{package}.{name}', 'protobuf', b''.join(part(1, one) for one in files)


# ---- MCAP

MAGIC = b'\x89MCAP0\r\n'


def _text(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack('<I', len(data)) + data


def _record(kind, body):
    return struct.pack('<BQ', kind, len(body)) + body


def mcap(path, channels, messages, chunked=True, summary=True):
    """Channels: {number: (topic, encoding, schema's number)}, with schemas under the keys
    'schemas': {number: (name, encoding, data)}; messages: (channel, bytes)."""
    schemas = channels.get('schemas', {})
    about = b''.join(_record(3, struct.pack('<H', n) + _text(name) + _text(encoding) + _text(data))
                     for n, (name, encoding, data) in schemas.items())
    about += b''.join(
        _record(4, struct.pack('<HH', n, schema) + _text(topic) + _text(encoding) +
                _text(_text('key') + _text('value')))
        for n, (topic, encoding, schema) in
        ((n, c) for n, c in channels.items() if n != 'schemas'))
    records = [_record(5, struct.pack('<HIQQ', channel, i, 1000 + i, 900 + i) + data)
               for i, (channel, data) in enumerate(messages)]
    out = MAGIC + _record(1, _text('') + _text('test'))
    if chunked:
        for i in range(0, len(records), 4):
            inside = (about if i == 0 else b'') + b''.join(records[i:i + 4])
            out += _record(6, struct.pack('<QQQI', 0, 0, len(inside), zlib.crc32(inside)) +
                           _text('') + struct.pack('<Q', len(inside)) + inside)
    else:
        out += about + b''.join(records)
    out += _record(15, struct.pack('<I', zlib.crc32(out)))
    start = len(out) if summary else 0
    end = b''
    if summary:
        end = about + _record(11, struct.pack(
            '<QHIIIIQQI', len(records), len(schemas), len(channels) - ('schemas' in channels),
            0, 0, 0, 0, 0, 0))
    footer = struct.pack('<BQQQ', 2, 20, start, 0)
    crc = zlib.crc32(end + footer) if summary else 0
    with open(path, 'wb') as file:
        file.write(out + end + footer + struct.pack('<I', crc) + MAGIC)

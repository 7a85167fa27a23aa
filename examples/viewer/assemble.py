#!/usr/bin/python3
"""Write the viewer as one file: assemble.py OUT viewer.wasm page.html style.css X.mjs... [LICENSE]

The modules are joined to one script in this order: each exports names that later ones use.
The page's content security policy contains the hashes of the style and the script. LICENSE is
libzstd's licence, needed if viewer.wasm contains its decoder."""
import base64
import hashlib
import re
import sys

out, wasm, *files = sys.argv[1:]
text = {name.rsplit('/', 1)[-1]: open(name, encoding='utf-8').read()
        for name in files if not name.endswith('.py')}


def hash_of(content):
    return 'sha256-' + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


script = f"const WASM = '{base64.b64encode(open(wasm, 'rb').read()).decode()}';\n"
for name, source in text.items():
    if name.endswith('.mjs'):
        source = re.sub(r'^import .*\n', '', source, flags=re.M)
        script += re.sub(r'^export ', '', source, flags=re.M)
assert '</script' not in script and '</style' not in text['style.css']
page = text['page.html']
if 'LICENSE' in text:
    assert '--' not in text['LICENSE']
    page = page.replace('<head>', f"<head>\n<!-- The decoder of libzstd:\n{text['LICENSE']}-->", 1)
for key, content in {'STYLE_HASH': hash_of(text['style.css']), 'SCRIPT_HASH': hash_of(script),
                     'STYLE': text['style.css'], 'SCRIPT': script}.items():
    assert page.count('@' + key + '@') == 1
    page = page.replace('@' + key + '@', content)
with open(out, 'w', encoding='utf-8') as file:
    file.write(page)

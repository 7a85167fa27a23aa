"""Build the extensions with `make python`, which knows the libraries and the flags."""
import os
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class Make(build_ext):

    def build_extension(self, extension):
        if not os.path.exists(os.path.join(ROOT, 'bags.h')):
            sys.exit('bags.h was not found: install from a clone, pip install '
                     './examples/python')
        subprocess.check_call(['make', 'python', f'PYTHON={sys.executable}'], cwd=ROOT)
        name = extension.name.split('.')[-1] + '.abi3.so'
        target = self.get_ext_fullpath(extension.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.join(ROOT, 'build', 'python', 'bags', name), target)


setup(
    ext_modules=[Extension(f'bags.{name}', [], py_limited_api=True)
                 for name in ('_core', '_far')],
    cmdclass={'build_ext': Make},
    options={'bdist_wheel': {'py_limited_api': 'cp311'}})

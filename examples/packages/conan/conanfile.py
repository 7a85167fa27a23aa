"""The recipe for Conan 2. In a clone, run: conan create examples/packages/conan

Each option enables a format: -o 'bags/*:jpeg=True'."""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain
from conan.tools.files import copy, load
from conan.tools.gnu import PkgConfigDeps

REQUIRES = {
    'jpeg': ['libjpeg-turbo/[>=2.1 <4]'],
    'png': ['libpng/[>=1.6 <2]'],
    'webp': ['libwebp/[>=1.2 <2]'],
    'msgpack': ['msgpack-c/[>=4 <7]'],
    'zstd': ['zstd/[>=1.5 <2]'],
    'mp4': ['ffmpeg/[>=5 <8]'],
    'sql': ['sqlite3/[>=3.40 <4]'],
    'http': ['libcurl/[>=7.83 <9]', 'openssl/[>=1.1 <4]'],
}
FILES = ['bags.h', 'LICENSE', 'formats/*', 'examples/packages/cmake/*']


class Bags(ConanFile):
    name = 'bags'
    description = 'Machine-learning datasets in the Bag and Bags formats'
    license = 'MIT OR Unlicense'
    topics = 'dataset', 'machine-learning', 'storage'
    package_type = 'static-library'
    settings = 'os', 'arch', 'compiler', 'build_type'
    options = {'fPIC': [True, False], **{name: [True, False] for name in REQUIRES}}
    default_options = {'fPIC': True, **{name: False for name in REQUIRES}}
    languages = 'C'
    implements = ['auto_shared_fpic']

    def _root(self):
        return os.path.join(self.recipe_folder, '..', '..', '..')

    def _formats(self):
        return [name for name in REQUIRES if self.options.get_safe(name)]

    def set_version(self):
        header = load(self, os.path.join(self._root(), 'bags.h'))
        self.version = re.search(r'define BAGS_VERSION "(.*)"', header)[1]

    def export_sources(self):
        for pattern in FILES:
            copy(self, pattern, self._root(), self.export_sources_folder)

    def requirements(self):
        for name in self._formats():
            for reference in REQUIRES[name]:
                self.requires(reference)

    def build_requirements(self):
        if not self.conf.get('tools.gnu:pkg_config', check_type=str):
            self.tool_requires('pkgconf/[>=2 <3]')

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables['BAGS_FORMATS'] = ';'.join(self._formats())
        toolchain.generate()
        PkgConfigDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure(build_script_folder='examples/packages/cmake')
        cmake.build()

    def package(self):
        copy(self, 'LICENSE', self.source_folder, os.path.join(self.package_folder, 'licenses'))
        CMake(self).install()

    def package_info(self):
        self.cpp_info.set_property('cmake_file_name', 'bags')
        core = self.cpp_info.components['bags']
        core.set_property('cmake_target_name', 'bags::bags')
        core.libs = ['bags']
        if self.settings.os != 'Windows':
            core.system_libs = ['m', 'pthread', 'dl']
        for name in self._formats():
            part = self.cpp_info.components[name]
            part.set_property('cmake_target_name', f'bags::{name}')
            part.libs = [f'bags-{name}']
            part.requires = ['bags']
            for reference in REQUIRES[name]:
                package = reference.split('/')[0]
                part.requires.append(f'{package}::{package}')

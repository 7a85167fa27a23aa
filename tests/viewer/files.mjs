// files.mjs - the File objects of local files are those of the npm package.
export {files_of} from '../../examples/packages/npm/files.mjs';

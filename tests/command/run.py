"""Runs the tests of the command; see command.sh."""
import sys

import harness


def main():
    harness.PROGRAM = sys.argv[1]
    import checksums
    import golden_data
    import getting
    import help_and_output
    import images
    import importing
    import manifests
    import recovery
    import verifying
    import writing
    for module in (golden_data, help_and_output, getting, manifests, writing,
                   recovery, verifying, images, checksums, importing):
        harness.checks(module)
    print(f'{harness.passed} passed, {harness.failed} failed')
    sys.exit(harness.failed > 0 or harness.passed == 0)


main()

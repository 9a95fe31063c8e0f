"""`python box.zip host|box|hub_files ...`: the archive's entry, at its top level on a machine."""

import runpy
import sys

if __name__ == "__main__":
    runpy.run_module(f"bootstrap.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)

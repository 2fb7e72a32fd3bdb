"""`python -m fedstrata` is `fedstrata`."""

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    sys.path.append(sys.path.pop(0))  # what lies beside the user comes after what is installed, as with `fedstrata`

from fedstrata.cli import main

if __name__ == "__main__":
    main()

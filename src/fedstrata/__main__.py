"""`python -m fedstrata` is `fedstrata`."""

from fedstrata.cli import main

if __name__ == "__main__":
    main()

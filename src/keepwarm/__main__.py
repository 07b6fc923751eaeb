"""`python -m keepwarm` is `keepwarm`."""

from keepwarm.cli.main import main

if __name__ == "__main__":
    main()

"""A role and a database of its own for each of Prefect, MLflow and the ledger, made where they are missing; gives each its password.

Runs before the servers, each time: so a password that was changed in its file is changed in the database too, and a volume from
before is good. A role may enter its own database alone: who breaks into a server with pages does not reach the ledger. The server
gets each password as a SCRAM verifier, so none stands in its log.
"""

import os
import sys
from pathlib import Path

import psycopg
from psycopg import sql

SECRETS = Path(os.environ.get("SECRETS", "/run/secrets"))
SUFFIX = "_password"
OWNER = "postgres"
"""The role that makes the others; its password is that with which the server began."""


def main() -> None:
    """Make or bring up to date what the files of passwords name."""
    passwords = {path.name.removesuffix(SUFFIX): path for path in sorted(SECRETS.glob(f"*{SUFFIX}"))}
    passwords.pop(OWNER, None)
    if not passwords:
        sys.exit(f"sfumato: no password of a database in {SECRETS}: run deploy/new-secrets.sh, and start again")
    try:
        with psycopg.connect(dbname=OWNER, autocommit=True) as connection:
            for role, path in passwords.items():
                make(connection, role, path.read_text(encoding="utf-8").strip())
                print(f"{role}: role and database are there")
    except psycopg.OperationalError as error:
        sys.exit(
            f"sfumato: PostgreSQL cannot be used ({str(error).strip().splitlines()[-1]}): is it up, with this password?"
        )


def make(connection: psycopg.Connection, role: str, password: str) -> None:
    """One role, its password, and the database that is called as it is."""
    name = sql.Identifier(role)
    if not there(connection, "SELECT 1 FROM pg_roles WHERE rolname = %s", role):
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
    verifier = connection.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode()
    connection.execute(sql.SQL("ALTER ROLE {} PASSWORD {}").format(name, sql.Literal(verifier)))
    if not there(connection, "SELECT 1 FROM pg_database WHERE datname = %s", role):
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {} ENCODING 'UTF8' TEMPLATE template0").format(name, name))
    connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))


def there(connection: psycopg.Connection, query: str, value: str) -> bool:
    """Whether a query with one value has a row."""
    return connection.execute(query, (value,)).fetchone() is not None


if __name__ == "__main__":
    main()

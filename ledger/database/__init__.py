"""The PostgreSQL side: connections, the embedded server, tables, migrations."""

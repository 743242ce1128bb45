-- The roles belong to the server: other databases may use them, so they are made once and stay.
-- ledger_sql is the login of queries that users write. It has no password: PostgreSQL refuses it
-- wherever it asks for one, until somebody gives it one.
DO $$
DECLARE role_name text;
BEGIN
  FOREACH role_name IN ARRAY ARRAY[
    'ledger_owner', 'ledger_writer', 'ledger_reader', 'ledger_payload_reader', 'ledger_sql'
  ] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
        EXECUTE format('CREATE ROLE %I %s', role_name,
                       CASE role_name WHEN 'ledger_sql' THEN 'LOGIN' ELSE 'NOLOGIN' END);
      END IF;
      IF role_name IN ('ledger_payload_reader', 'ledger_sql')
         AND NOT pg_has_role(role_name, 'ledger_reader', 'MEMBER') THEN
        EXECUTE format('GRANT ledger_reader TO %I', role_name);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;  -- another database of this server was migrated at the same time
    END;
    BEGIN  -- for a session that logs in as the role; the library sets it in each transaction
      EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = ackledger, public',
                     role_name, current_database());
    EXCEPTION WHEN insufficient_privilege THEN
      NULL;  -- who migrates may not change a role that another user made
    END;
    -- Since PostgreSQL 16 who creates a role may grant it, and is no more than that.
    IF role_name <> 'ledger_sql'
       AND (NOT pg_has_role(current_user, role_name, 'MEMBER')
            OR NOT pg_has_role(current_user, role_name, 'USAGE')
               AND pg_has_role(current_user, role_name, 'MEMBER WITH ADMIN OPTION')) THEN
      EXECUTE format('GRANT %I TO %I', role_name, current_user);
    END IF;
  END LOOP;
END $$;
GRANT USAGE, CREATE ON SCHEMA ackledger TO ledger_owner;
GRANT USAGE ON SCHEMA ackledger TO ledger_writer, ledger_reader;

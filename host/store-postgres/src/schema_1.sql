-- Version 1 of the tables. Names and keys are bytes, since they may contain NUL, which text in PostgreSQL cannot hold.
-- `SET bytea_output = 'escape'` shows them as text, and they compare with text literals: id = 'alice'.

-- The store itself (R5). It has one row.
CREATE TABLE ostraca.store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    schema_version integer NOT NULL,
    store_id bytea NOT NULL CHECK (octet_length(store_id) = 16),
    cluster_id bytea NOT NULL CHECK (octet_length(cluster_id) = 16),
    cluster_name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- How often the store was opened, by all nodes together.
    open_count bigint NOT NULL,
    -- Batches of the writers that have ended.
    ended_batches bigint NOT NULL,
    -- The server's own id, and its time line: a fail-over begins a new one.
    system_identifier bigint NOT NULL,
    timeline bigint NOT NULL,
    -- The time line that an operator has accepted, although commits may be missing there.
    accepted_timeline bigint,
    -- Whether commits wait for a standby, as a node saw last.
    replicated boolean NOT NULL,
    -- Where the store was moved to: nobody may use it here any more.
    moved_to text,
    -- The state of an unfinished copy into this store: nobody may use it yet.
    copy bytea
);

-- The last openings, with the random nonce of each (R5).
CREATE TABLE ostraca.openings (
    number bigint PRIMARY KEY,
    nonce bigint NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT now()
);

-- One row for each connection that writes. A connection counts its batches here, so a node notices if the database
-- lacks one of its batches, and a batch of a connection that was given up has no effect.
CREATE TABLE ostraca.writers (
    id bigint PRIMARY KEY,
    opening bigint NOT NULL,
    batches bigint NOT NULL
) WITH (fillfactor = 50);

-- The shards that were ever claimed, with their current claims (R4). The floor holds the highest values of all heads
-- that were removed (E17).
CREATE TABLE ostraca.shards (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace bytea NOT NULL,
    pool bytea NOT NULL,
    number bigint NOT NULL,
    claim bytea NOT NULL,
    floor_version bigint NOT NULL DEFAULT 0,
    floor_generation bigint NOT NULL DEFAULT 0,
    floor_watermark bigint NOT NULL DEFAULT 0,
    floor_tell_watermark bigint NOT NULL DEFAULT 0,
    has_floor boolean NOT NULL DEFAULT false,
    -- Added to the numbers of commits: a shard that came from another database goes on above its numbers there.
    sequence_base bigint NOT NULL DEFAULT 0,
    UNIQUE (namespace, pool, number)
) WITH (fillfactor = 50);

-- Numbers the commits (`commit_sequence` of a head).
CREATE SEQUENCE ostraca.commits AS bigint;

-- The heads of entities: their versions, the turns that wrote them, and the rest as one record.
CREATE TABLE ostraca.heads (
    shard integer NOT NULL,
    type bytea NOT NULL,
    id bytea NOT NULL,
    version bigint NOT NULL,
    turn bytea NOT NULL,
    commit_sequence bigint NOT NULL,
    head bytea NOT NULL,
    PRIMARY KEY (shard, type, id)
) WITH (fillfactor = 80);

-- All other records of entities, by kind: 3 state, 4 lanes, 5 timers, 6 outbox, 7 journal, 8 marks of remembered
-- entities, 9 dead letters, 11 items of channels, 105 wake-ups (without type and id, since they are ordered by time).
CREATE TABLE ostraca.records (
    shard integer NOT NULL,
    kind smallint NOT NULL,
    type bytea NOT NULL,
    id bytea NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (shard, kind, type, id, key)
);

-- Components, by their BLAKE3 digests (R6).
CREATE TABLE ostraca.blobs (
    digest bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    data bytea NOT NULL
);
ALTER TABLE ostraca.blobs ALTER COLUMN data SET STORAGE EXTERNAL;

-- The cluster's own rows: nodes, leases, leadership, assignments, deployments.
CREATE TABLE ostraca.rows (
    key bytea PRIMARY KEY,
    revision bigint NOT NULL,
    value bytea NOT NULL
) WITH (fillfactor = 50);

-- The revision of the last change of a row. A change locks this row until it is committed, so changes become visible in
-- the order of their revisions, which a sequence would not ensure. Changes up to `forgotten` are not listed any more.
CREATE TABLE ostraca.revision (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last bigint NOT NULL,
    forgotten bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO ostraca.revision (last, forgotten) VALUES (0, 0);

-- The last changes of rows, for those who watch; NULL: the row was deleted.
CREATE TABLE ostraca.row_changes (
    revision bigint PRIMARY KEY,
    key bytea NOT NULL,
    value bytea
);

-- For people: the entities.
CREATE VIEW ostraca.entities AS
    SELECT s.namespace, s.pool, s.number AS shard, h.type, h.id, h.version, h.commit_sequence
    FROM ostraca.heads h JOIN ostraca.shards s ON s.id = h.shard;

-- For people: the keys and values of entities (E17).
CREATE VIEW ostraca.state AS
    SELECT s.namespace, s.pool, s.number AS shard, r.type, r.id, r.key, r.value
    FROM ostraca.records r JOIN ostraca.shards s ON s.id = r.shard
    WHERE r.kind = 3;

-- Reads an unsigned number in base 128 (LEB128) from a position on. Returns it and the position behind it.
CREATE FUNCTION ostraca.read_number(bytes bytea, INOUT at integer, OUT number numeric)
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    part integer;
    weight numeric := 1;
BEGIN
    number := 0;
    LOOP
        part := get_byte(bytes, at);
        at := at + 1;
        number := number + (part & 127) * weight;
        EXIT WHEN part < 128;
        weight := weight * 128;
    END LOOP;
END $$;

-- The guest's own bytes of an event, or of a snapshot, of which `numbers` numbers come first.
CREATE FUNCTION ostraca.data_after(bytes bytea, numbers integer) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    read record;
    at integer := 0;
BEGIN
    FOR count IN 0..numbers LOOP
        read := ostraca.read_number(bytes, at);
        at := read.at;
    END LOOP;
    RETURN substring(bytes FROM at + 1 FOR read.number::integer);
END $$;

-- For people: the events of journals (E18).
CREATE VIEW ostraca.journal AS
    SELECT s.namespace, s.pool, s.number AS shard, r.type, r.id,
        ('x' || encode(r.key, 'hex'))::bit(64)::bigint AS event, ostraca.data_after(r.value, 1) AS data
    FROM ostraca.records r JOIN ostraca.shards s ON s.id = r.shard
    WHERE r.kind = 7 AND r.key <> '\x0000000000000000';

-- For people: the last snapshots of journals.
CREATE VIEW ostraca.snapshots AS
    SELECT s.namespace, s.pool, s.number AS shard, r.type, r.id,
        (ostraca.read_number(r.value, 0)).number::bigint AS through, ostraca.data_after(r.value, 2) AS data
    FROM ostraca.records r JOIN ostraca.shards s ON s.id = r.shard
    WHERE r.kind = 7 AND r.key = '\x0000000000000000';

-- Begins a transaction of a writer: counts its batch, and fails if it is not the next one. So a batch of a connection
-- that was given up ends here.
CREATE FUNCTION ostraca.begin_batch(writer bigint, batches_before bigint, synchronous text, lock_wait text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Compiling a statement takes longer than any of these runs.
    PERFORM set_config('synchronous_commit', synchronous, true), set_config('lock_timeout', lock_wait, true),
        set_config('jit', 'off', true);
    UPDATE ostraca.writers w SET batches = batches_before + 1 WHERE w.id = writer AND w.batches = batches_before;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % has not written % batches', writer, batches_before USING ERRCODE = 'OS001';
    END IF;
END $$;

-- Commits a batch of turns. Everything happens in this one statement, including COMMIT, so no lock of a client that
-- stops outlives it: the server runs it once it has received all of it.
--
-- The turns of one entity are in different rounds, in order. Each statement has a snapshot of its own, so what is
-- compared was read after the locks were granted. Outcomes: 0 committed, 1 committed before, 2 another claim, 3 another
-- version, 4 refused by the caller (neither a head nor a removal). `current_claims` and `versions` say what was found
-- instead, and `replicated` whether the commit waits for a standby.
CREATE PROCEDURE ostraca.commit_batch(
    writer bigint,
    batches_before bigint,
    synchronous text,
    lock_wait text,
    shard_namespaces bytea[],
    shard_pools bytea[],
    shard_numbers bigint[],
    turn_rounds integer[],
    turn_shards integer[],
    turn_claims bytea[],
    turn_types bytea[],
    turn_ids bytea[],
    turn_expected bigint[],
    turn_versions bigint[],
    turn_turns bytea[],
    turn_heads bytea[],
    turn_removes boolean[],
    turn_generations bigint[],
    turn_watermarks bigint[],
    turn_tell_watermarks bigint[],
    write_turns integer[],
    write_kinds smallint[],
    write_keys bytea[],
    write_values bytea[],
    INOUT outcomes smallint[],
    INOUT versions bigint[],
    INOUT current_claims bytea[],
    INOUT replicated boolean
) LANGUAGE plpgsql AS $$
DECLARE
    -- Of the batch, then of a round.
    turns integer := cardinality(turn_rounds);
    writes integer := cardinality(write_turns);
    rounds CONSTANT integer := (SELECT max(r) FROM unnest(turn_rounds) r);
    has_deletions CONSTANT boolean := array_position(write_values, NULL) IS NOT NULL;
    has_removals CONSTANT boolean := true = ANY (turn_removes);
    shard record;
    turn record;
    -- Of each shard of the batch; NULL if it was never claimed.
    shard_ids integer[] := array_fill(NULL::integer, ARRAY[cardinality(shard_numbers)]);
    claims bytea[] := array_fill(NULL::bytea, ARRAY[cardinality(shard_numbers)]);
    bases bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(shard_numbers)]);
    floors bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(shard_numbers)]);
    -- The places of the rows that a statement has updated.
    updated integer[];
    -- Whether each write is done.
    done boolean[] := array_fill(false, ARRAY[cardinality(write_turns)]);
    place integer;
    is_accepted boolean;
BEGIN
    PERFORM ostraca.begin_batch(writer, batches_before, synchronous, lock_wait);
    -- The statements are planned once for a connection, maybe while the tables are nearly empty. So that each row is
    -- always found by its key, it is looked up in a subquery of its own. The limits, which the planner does not know,
    -- let it expect one row, and join by the rows' places. (Not those of shards, which a claim may have replaced while
    -- its row was waited for.)
    PERFORM set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true);
    replicated := current_setting('synchronous_standby_names') <> '';
    -- The shards in order, so that no two batches wait for each other.
    FOR shard IN
        SELECT s.id, s.claim, s.sequence_base, s.floor_version, b.place
            FROM (
                SELECT u.place, (
                    SELECT x.id FROM ostraca.shards x
                    WHERE x.namespace = u.namespace AND x.pool = u.pool AND x.number = u.number
                ) AS id
                FROM unnest(shard_namespaces, shard_pools, shard_numbers) WITH ORDINALITY
                    AS u (namespace, pool, number, place)
                LIMIT cardinality(shard_numbers)
            ) b
            JOIN ostraca.shards s ON s.id = b.id
            ORDER BY s.id FOR UPDATE OF s
    LOOP
        shard_ids[shard.place] := shard.id;
        claims[shard.place] := shard.claim;
        bases[shard.place] := shard.sequence_base;
        floors[shard.place] := shard.floor_version;
    END LOOP;
    outcomes := array_fill(NULL::smallint, ARRAY[turns]);
    versions := array_fill(NULL::bigint, ARRAY[turns]);
    current_claims := array_fill(NULL::bytea, ARRAY[turns]);
    FOR one_round IN 1..coalesce(rounds, 0) LOOP
        -- First what nearly all turns are: the next version of an entity that has a head.
        WITH written AS (
            UPDATE ostraca.heads h SET version = t.version, turn = t.turn, head = t.head,
                    commit_sequence = bases[t.shard] + nextval('ostraca.commits')
                FROM (
                    SELECT u.*, (
                        SELECT x.ctid FROM ostraca.heads x
                        WHERE x.shard = shard_ids[u.shard] AND x.type = u.type AND x.id = u.id
                    ) AS at
                    FROM unnest(turn_rounds, turn_shards, turn_claims, turn_types, turn_ids, turn_expected,
                        turn_versions, turn_turns, turn_heads) WITH ORDINALITY
                        AS u (round, shard, claim, type, id, expected, version, turn, head, place)
                    WHERE u.round = one_round AND u.claim = claims[u.shard] AND u.head IS NOT NULL
                    LIMIT cardinality(turn_rounds)
                ) t
                WHERE h.ctid = t.at AND h.version = t.expected
                RETURNING t.place
        )
        SELECT coalesce(array_agg(w.place), '{}') INTO updated FROM written w;
        FOREACH place IN ARRAY updated LOOP
            outcomes[place] := 0;
        END LOOP;
        is_accepted := cardinality(updated) > 0;
        IF rounds > 1 THEN
            turns := (SELECT count(*) FROM unnest(turn_rounds) r WHERE r = one_round);
        END IF;
        IF cardinality(updated) < turns THEN
            -- Then what is left of the round: new entities, removals, and what is refused or was committed before.
            FOR turn IN
                WITH judged AS (
                    SELECT t.place, t.shard, t.type, t.id, t.version, t.turn, t.head, t.claim_found, t.base,
                        coalesce(h.version, t.floor, 0) AS found,
                        CASE
                            WHEN h.version = t.version AND h.turn = t.turn THEN 1
                            WHEN t.claim_found IS DISTINCT FROM t.claim THEN 2
                            WHEN coalesce(h.version, t.floor, 0) <> t.expected THEN 3
                            WHEN t.head IS NULL AND NOT t.removes THEN 4
                            ELSE 0
                        END::smallint AS outcome
                    FROM (
                        SELECT u.place, shard_ids[u.shard] AS shard, claims[u.shard] AS claim_found,
                            bases[u.shard] AS base, floors[u.shard] AS floor, u.claim, u.type, u.id, u.expected,
                            u.version, u.turn, u.head, u.removes
                        FROM unnest(turn_rounds, turn_shards, turn_claims, turn_types, turn_ids, turn_expected,
                            turn_versions, turn_turns, turn_heads, turn_removes) WITH ORDINALITY
                            AS u (round, shard, claim, type, id, expected, version, turn, head, removes, place)
                        WHERE u.round = one_round AND outcomes[u.place] IS NULL
                    ) t
                    LEFT JOIN LATERAL (
                        SELECT x.version, x.turn FROM ostraca.heads x
                        WHERE x.shard = t.shard AND x.type = t.type AND x.id = t.id LIMIT 1
                    ) h ON true
                ), created AS (
                    INSERT INTO ostraca.heads (shard, type, id, version, turn, commit_sequence, head)
                    SELECT j.shard, j.type, j.id, j.version, j.turn, j.base + nextval('ostraca.commits'), j.head
                        FROM judged j WHERE j.outcome = 0 AND j.head IS NOT NULL ORDER BY j.place
                )
                SELECT j.place, j.outcome, CASE j.outcome WHEN 3 THEN j.found END AS found,
                    CASE j.outcome WHEN 2 THEN j.claim_found END AS claim
                    FROM judged j
            LOOP
                outcomes[turn.place] := turn.outcome;
                versions[turn.place] := turn.found;
                current_claims[turn.place] := turn.claim;
                is_accepted := is_accepted OR turn.outcome = 0;
            END LOOP;
        END IF;
        CONTINUE WHEN NOT is_accepted;
        IF has_removals THEN
            WITH removed AS (
                SELECT shard_ids[t.of_batch] AS shard, t.type, t.id, t.version, t.generation, t.watermark,
                    t.tell_watermark
                FROM unnest(turn_shards, turn_types, turn_ids, turn_removes, turn_versions, turn_generations,
                    turn_watermarks, turn_tell_watermarks)
                    WITH ORDINALITY AS t (of_batch, type, id, removes, version, generation, watermark, tell_watermark,
                        place)
                WHERE outcomes[t.place] = 0 AND turn_rounds[t.place] = one_round AND t.removes
            ), gone AS (
                DELETE FROM ostraca.heads h WHERE h.ctid = ANY (ARRAY(
                    SELECT (
                        SELECT x.ctid FROM ostraca.heads x WHERE x.shard = r.shard AND x.type = r.type AND x.id = r.id
                    ) FROM removed r
                ))
            )
            UPDATE ostraca.shards s SET has_floor = true,
                floor_version = greatest(s.floor_version, f.version),
                floor_generation = greatest(s.floor_generation, f.generation),
                floor_watermark = greatest(s.floor_watermark, f.watermark),
                floor_tell_watermark = greatest(s.floor_tell_watermark, f.tell_watermark)
                FROM (
                    SELECT r.shard, max(r.version) AS version, max(r.generation) AS generation,
                        max(r.watermark) AS watermark, max(r.tell_watermark) AS tell_watermark
                    FROM removed r GROUP BY r.shard
                ) f WHERE f.shard = s.id;
            floors := ARRAY(
                SELECT s.floor_version FROM unnest(shard_ids) WITH ORDINALITY AS of_batch (id, place)
                    LEFT JOIN ostraca.shards s ON s.id = of_batch.id ORDER BY of_batch.place
            );
        END IF;
        CONTINUE WHEN cardinality(write_turns) = 0;
        -- The same for records: first those that are there, then the others.
        WITH written AS (
            UPDATE ostraca.records r SET value = w.value
                FROM (
                    SELECT u.place, u.value, (
                        SELECT x.ctid FROM ostraca.records x
                        WHERE x.shard = shard_ids[turn_shards[u.turn]] AND x.kind = u.kind
                            AND x.type = CASE u.kind WHEN 105 THEN ''::bytea ELSE turn_types[u.turn] END
                            AND x.id = CASE u.kind WHEN 105 THEN ''::bytea ELSE turn_ids[u.turn] END AND x.key = u.key
                    ) AS at
                    FROM unnest(write_turns, write_kinds, write_keys, write_values) WITH ORDINALITY
                        AS u (turn, kind, key, value, place)
                    WHERE outcomes[u.turn] = 0 AND turn_rounds[u.turn] = one_round AND u.value IS NOT NULL
                    LIMIT cardinality(write_turns)
                ) w
                WHERE r.ctid = w.at
                RETURNING w.place
        )
        SELECT coalesce(array_agg(w.place), '{}') INTO updated FROM written w;
        FOREACH place IN ARRAY updated LOOP
            done[place] := true;
        END LOOP;
        IF rounds > 1 THEN
            writes := (SELECT count(*) FROM unnest(write_turns) t
                WHERE outcomes[t] = 0 AND turn_rounds[t] = one_round);
        END IF;
        CONTINUE WHEN cardinality(updated) = writes;
        WITH writes AS (
            SELECT shard_ids[turn_shards[w.turn]] AS shard, w.kind, w.key, w.value,
                CASE w.kind WHEN 105 THEN ''::bytea ELSE turn_types[w.turn] END AS type,
                CASE w.kind WHEN 105 THEN ''::bytea ELSE turn_ids[w.turn] END AS id
            FROM unnest(write_turns, write_kinds, write_keys, write_values) WITH ORDINALITY
                AS w (turn, kind, key, value, place)
            WHERE outcomes[w.turn] = 0 AND turn_rounds[w.turn] = one_round AND NOT done[w.place]
        ), deleted AS (
            DELETE FROM ostraca.records r WHERE has_deletions AND r.ctid = ANY (ARRAY(
                SELECT (
                    SELECT x.ctid FROM ostraca.records x
                    WHERE x.shard = w.shard AND x.kind = w.kind AND x.type = w.type AND x.id = w.id AND x.key = w.key
                ) FROM writes w WHERE w.value IS NULL
            ))
        )
        INSERT INTO ostraca.records (shard, kind, type, id, key, value)
            SELECT w.shard, w.kind, w.type, w.id, w.key, w.value FROM writes w WHERE w.value IS NOT NULL;
    END LOOP;
    COMMIT;
END $$;

-- Replaces a shard's claim if it is the expected one; NULL if the shard must have none. `found` is the claim that is
-- there otherwise.
CREATE PROCEDURE ostraca.claim(
    writer bigint,
    batches_before bigint,
    synchronous text,
    lock_wait text,
    shard_namespace bytea,
    shard_pool bytea,
    shard_number bigint,
    expected bytea,
    wanted bytea,
    INOUT granted boolean,
    INOUT found bytea
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ostraca.begin_batch(writer, batches_before, synchronous, lock_wait);
    IF expected IS NULL THEN
        INSERT INTO ostraca.shards (namespace, pool, number, claim)
            VALUES (shard_namespace, shard_pool, shard_number, wanted) ON CONFLICT DO NOTHING;
        granted := FOUND;
    ELSE
        UPDATE ostraca.shards s SET claim = wanted
            WHERE s.namespace = shard_namespace AND s.pool = shard_pool AND s.number = shard_number
            AND s.claim = expected;
        granted := FOUND;
    END IF;
    IF NOT granted THEN
        SELECT s.claim INTO found FROM ostraca.shards s
            WHERE s.namespace = shard_namespace AND s.pool = shard_pool AND s.number = shard_number;
    END IF;
    COMMIT;
END $$;

-- Changes rows, one after the other, each if it has the expected revision (NULL: if it does not exist). A NULL value
-- deletes the row. `revisions` are those of the changes; NULL where the row had another revision, which is then in
-- `found_revisions` with its value.
CREATE PROCEDURE ostraca.change_rows(
    writer bigint,
    batches_before bigint,
    synchronous text,
    lock_wait text,
    row_keys bytea[],
    row_expected bigint[],
    row_values bytea[],
    kept_changes bigint,
    notifies boolean,
    INOUT revisions bigint[],
    INOUT found_revisions bigint[],
    INOUT found_values bytea[]
) LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
    now_last bigint;
    found record;
BEGIN
    PERFORM ostraca.begin_batch(writer, batches_before, synchronous, lock_wait);
    revisions := array_fill(NULL::bigint, ARRAY[cardinality(row_keys)]);
    found_revisions := array_fill(NULL::bigint, ARRAY[cardinality(row_keys)]);
    found_values := array_fill(NULL::bytea, ARRAY[cardinality(row_keys)]);
    -- The statements behind this one see all changes with lower revisions.
    SELECT v.last INTO first FROM ostraca.revision v FOR UPDATE;
    now_last := first;
    FOR place IN 1..cardinality(row_keys) LOOP
        SELECT r.revision, r.value INTO found FROM ostraca.rows r WHERE r.key = row_keys[place];
        IF found.revision IS DISTINCT FROM row_expected[place] THEN
            found_revisions[place] := found.revision;
            found_values[place] := found.value;
            CONTINUE;
        END IF;
        now_last := now_last + 1;
        revisions[place] := now_last;
        IF row_values[place] IS NULL THEN
            DELETE FROM ostraca.rows r WHERE r.key = row_keys[place];
        ELSE
            INSERT INTO ostraca.rows AS r (key, revision, value) VALUES (row_keys[place], now_last, row_values[place])
                ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, value = excluded.value;
        END IF;
        INSERT INTO ostraca.row_changes (revision, key, value) VALUES (now_last, row_keys[place], row_values[place]);
    END LOOP;
    IF now_last > first THEN
        UPDATE ostraca.revision v SET last = now_last, forgotten = greatest(v.forgotten, now_last - kept_changes);
        DELETE FROM ostraca.row_changes c WHERE c.revision <= now_last - kept_changes;
        IF notifies THEN
            PERFORM pg_notify('ostraca_rows', '');
        END IF;
    END IF;
    COMMIT;
END $$;

-- Fails if the store was moved, and says where to.
CREATE FUNCTION ostraca.refuse_if_moved() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    place text;
BEGIN
    SELECT s.moved_to INTO place FROM ostraca.store s;
    IF place IS NOT NULL THEN
        RAISE EXCEPTION '%', place USING ERRCODE = 'OS002';
    END IF;
END $$;

-- Gives a new connection its row, and ends that of the connection before. Returns false if the old row lacks batches
-- that were acknowledged. Calling it again with the same id changes nothing.
CREATE FUNCTION ostraca.replace_writer(new_id bigint, of_opening bigint, old_id bigint, least_batches bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM ostraca.refuse_if_moved();
    IF old_id IS NOT NULL THEN
        SELECT w.batches INTO found FROM ostraca.writers w WHERE w.id = old_id FOR UPDATE;
        IF found IS NULL THEN
            -- An earlier call of the same replacement has taken effect, or the row is lost.
            RETURN EXISTS (SELECT FROM ostraca.writers w WHERE w.id = new_id);
        END IF;
        IF found < least_batches THEN
            RETURN false;
        END IF;
        DELETE FROM ostraca.writers w WHERE w.id = old_id;
        UPDATE ostraca.store s SET ended_batches = s.ended_batches + found;
    END IF;
    -- It waits for a move that is being marked.
    PERFORM 1 FROM ostraca.store s FOR SHARE;
    PERFORM ostraca.refuse_if_moved();
    INSERT INTO ostraca.writers (id, opening, batches) VALUES (new_id, of_opening, 0) ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- Ends the writers of an opening whose process has ended: its batches count on, and what the server still receives of
-- it has no effect.
CREATE FUNCTION ostraca.end_opening(ended bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    WITH gone AS (DELETE FROM ostraca.writers w WHERE w.opening = ended RETURNING w.batches)
        SELECT sum(gone.batches) INTO written FROM gone;
    IF written IS NOT NULL THEN
        UPDATE ostraca.store s SET ended_batches = s.ended_batches + written;
    END IF;
END $$;

-- Counts an opening of the store, and remembers its nonce and those of the last 10,000.
CREATE FUNCTION ostraca.open_store(own_nonce bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    own_number bigint;
BEGIN
    UPDATE ostraca.store s SET open_count = s.open_count + 1 RETURNING s.open_count INTO own_number;
    INSERT INTO ostraca.openings (number, nonce) VALUES (own_number, own_nonce);
    DELETE FROM ostraca.openings o WHERE o.number <= own_number - 10000;
    RETURN own_number;
END $$;

-- Marks the store as moved, if its batches are still these: from then on, no batch of any writer has an effect.
CREATE FUNCTION ostraca.mark_moved(place text, batches_before bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
BEGIN
    -- It waits for the batches that are running.
    PERFORM 1 FROM ostraca.writers w ORDER BY w.id FOR UPDATE;
    PERFORM 1 FROM ostraca.store s FOR UPDATE;
    WITH gone AS (DELETE FROM ostraca.writers w RETURNING w.batches)
        SELECT coalesce(sum(gone.batches), 0) INTO written FROM gone;
    UPDATE ostraca.store s SET ended_batches = s.ended_batches + written, moved_to = place
        RETURNING s.ended_batches INTO written;
    IF written <> batches_before THEN
        RAISE EXCEPTION 'the store was used during the copy' USING ERRCODE = 'OS003';
    END IF;
END $$;

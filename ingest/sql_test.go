package ingest

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"grebe/internal/cli"
	"grebe/internal/databasetest"
)

// queried imports from a database with variables of the environment.
func queried(t *testing.T, i *Import, env ...string) string {
	t.Helper()
	var b bytes.Buffer
	i.Lists = ";"
	if err := i.Run(&cli.World{Ctx: t.Context(), Stdout: &b, Stderr: &b, Env: env}); err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
	}
	return b.String()
}

// fill creates a table of products and one of clicks.
func fill(t *testing.T, s *databasetest.Server, list string) {
	t.Helper()
	db, err := (&Import{From: s.URL}).database([]string{passwordVariable + "=" + s.Password})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.open()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exec(t, conn, `CREATE TABLE products (sku INT PRIMARY KEY, title VARCHAR(200), price DECIMAL(10,2), tags `+list+`)`)
	exec(t, conn, `CREATE TABLE flags (sku INT PRIMARY KEY, flag `+
		map[string]string{"TEXT[]": "BOOLEAN", "JSON": "BIT(12)"}[list]+`, x DOUBLE PRECISION)`)
	exec(t, conn, `INSERT INTO flags VALUES (1, `+map[string]string{"TEXT[]": "TRUE", "JSON": "0x102"}[list]+`, 1.5)`)
	exec(t, conn, `CREATE TABLE clicks (uid VARCHAR(20), sku INT, at TIMESTAMP)`)
	tags := map[string]string{"TEXT[]": `'{a,"b, \"c\""}'`, "JSON": `'["a", "b, \"c\""]'`}[list]
	if list == "JSON" {
		tags = strings.ReplaceAll(tags, `\`, `\\`) // a literal of MariaDB
	}
	var values []string
	for n := range 3000 {
		values = append(values, fmt.Sprintf("(%d, 'Zelt \"%d\", grün; ' , %d.50, %s)", n, n, n, tags))
	}
	exec(t, conn, `INSERT INTO products VALUES `+strings.Join(values, ","))
	exec(t, conn, `INSERT INTO products VALUES (5000, NULL, NULL, NULL)`)
	exec(t, conn, `INSERT INTO clicks VALUES ('u1', 7, '2026-11-18 09:00:00'), ('u2', 9, '2026-11-18 10:00:00')`)
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatalf("%.60s: %v", query, err)
	}
}

const sqlMap = "id=sku,text=title,attributes.price=price:number,attributes.tag=tags"

func TestMariaDB(t *testing.T)  { testDatabase(t, databasetest.MariaDB(t), "JSON") }
func TestPostgres(t *testing.T) { testDatabase(t, databasetest.Postgres(t), "TEXT[]") }

// testDatabase imports from a real server: the catalog is that of the same rows as NDJSON. Mistakes are explained, and
// the password is nowhere.
func testDatabase(t *testing.T, s *databasetest.Server, list string) {
	t.Setenv("TMPDIR", t.TempDir())
	fill(t, s, list)
	secret := passwordVariable + "=" + s.Password
	var lines strings.Builder
	for n := range 3000 {
		fmt.Fprintf(&lines,
			`{"id":"%d","text":"Zelt \"%d\", grün; ","attributes":{"price":["%d.50"],"tag":["a","b, \"c\""]}}`+"\n", n, n, n)
	}
	lines.WriteString(`{"id":"5000"}` + "\n")
	dir := t.TempDir()
	run(t, &Import{Files: []string{file(t, "items.ndjson", []byte(lines.String()))}, DataDir: dir}, nil)
	want := contents(t, dir)

	const all = "SELECT sku, title, price, tags FROM products ORDER BY sku"
	dir = t.TempDir()
	out := queried(t, &Import{From: s.URL, Query: all, Map: sqlMap, DataDir: dir}, secret)
	if got := contents(t, dir); got != want || !strings.Contains(out, "3001 rows: 3001 created") {
		t.Errorf("the catalog is %s, want %s:\n%s", got, want, out)
	}
	out += queried(t, &Import{From: s.URL, Query: "SELECT uid, sku, at FROM clicks",
		Map: "user=uid,item=sku,time=at", DataDir: dir}, secret)
	if got := contents(t, dir); !strings.Contains(got, "u1 \"\" [] 7@1794992400") {
		t.Errorf("events: %s\n%s", got, out)
	}
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(s.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Types that a driver gives in a form of its own.
	types := t.TempDir()
	out += queried(t, &Import{From: s.URL, Query: "SELECT sku, flag, x FROM flags", Kind: "items",
		Map: "id=sku,attributes.flag=flag,attributes.x=x", DataDir: types}, secret)
	flag := map[string]string{"JSON": "258", "TEXT[]": "true"}[list]
	line := `{"id":"1","attributes":{"flag":["` + flag + `"],"x":["1.5"]}}`
	if got, want := contents(t, types), contents(t, imported(t, line)); got != want {
		t.Errorf("of types with a form of their own come %s, want %s", got, want)
	}
	again := queried(t, &Import{From: s.URL, Query: all, Map: sqlMap, DataDir: dir, PasswordFile: file})
	whole, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	whole.User = url.UserPassword("shop", s.Password)
	again += queried(t, &Import{From: "env:SHOP", Query: all, Map: sqlMap, DataDir: dir}, "SHOP="+whole.String())
	if strings.Count(again, "3001 unchanged") != 2 {
		t.Errorf("with the password in a file and in an address: %s", again)
	}
	out += again
	for _, c := range []struct{ from, query, env, want string }{
		{s.URL, all, passwordVariable + "=wrong-secret",
			`(?i)(denied|authentication failed).*check the user and the password`},
		{s.URL, "SELECT * FROM nothing", secret, `nothing.*check the table in --query`},
		{s.URL, "SELECT colour FROM products", secret, `colour.*check the columns`},
		{s.URL, "DELETE FROM products", secret, `(read.only|READ ONLY).*must be a SELECT`},
		{s.URL, "SELECT sku, 1.5 AS sku FROM products", secret, `the column "sku" twice`},
		{strings.Replace(s.URL, "/shop?", "/none?", 1), all, secret, `none.*(check the name of the database|grant SELECT)`},
		{strings.Replace(s.URL, "/grebe-db-", "/nowhere-", 1), all, secret, `does the database run there`},
		{whole.String(), all, "", `a password on the command line is visible.*` + passwordVariable},
		{s.URL, "", secret, `--from needs --query`},
		{s.URL, "SELECT sku, " + map[string]string{"JSON": "x'ff'", "TEXT[]": `'\xff'::bytea`}[list] +
			" AS title, 1 AS price, NULL AS tags FROM products", secret,
			`:1: column title: invalid UTF-8: leave the column out if it is binary`},
		{"oracle://x@y/z", all, secret, `want mysql://user@host/database or postgres://`},
		{"env:NONE", all, secret, `the variable NONE is not set`},
	} {
		text := queried(t, &Import{From: c.from, Query: c.query, Map: sqlMap, Kind: "items", DataDir: t.TempDir()}, c.env)
		if !regexp.MustCompile(`error: .*` + c.want).MatchString(text) {
			t.Errorf("%s: want %s:\n%s", c.query, c.want, text)
		}
		out += text
	}
	if strings.Contains(out, s.Password) || strings.Contains(out, "wrong-secret") {
		t.Errorf("a password was printed:\n%s", out)
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "grebe-import-*")); err == nil && len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

// imported returns a folder with an item.
func imported(t *testing.T, line string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, &Import{Files: []string{file(t, "items.ndjson", []byte(line+"\n"))}, DataDir: dir}, nil)
	return dir
}

// A database that takes connections and says nothing, as one that hangs does, ends an import with an error.
func TestSilentDatabases(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, kind := range []string{"mysql", "postgres"} {
		c := &Import{From: kind + "://shop@" + ln.Addr().String() + "/shop"}
		db, err := c.database([]string{passwordVariable + "=secret"})
		if err != nil {
			t.Fatal(err)
		}
		db.within = 100 * time.Millisecond
		_, err = db.spool(t.Context(), "SELECT 1", io.Discard)
		if err == nil {
			t.Fatalf("%s: no error", kind)
		}
		if text := db.explain(err).Error(); !strings.Contains(text, "does the database run there") ||
			strings.Contains(text, "secret") {
			t.Errorf("%s: %s", kind, text)
		}
	}
}

func TestArrays(t *testing.T) {
	for in, want := range map[string]string{`{}`: `[]`, `{1,2}`: `["1","2"]`,
		`{a,"b c",NULL,"NULL","q\"\\,"}`: `["a","b c","NULL","q\"\\,"]`, `{""}`: `[""]`} {
		if got, err := arrayText(in); got != want || err != nil {
			t.Errorf("%s is %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"a}", `{{1},{2}}`, `[0:1]={1,2}`, `x`} {
		if got, err := arrayText(in); err == nil {
			t.Errorf("%s is %s, want an error", in, got)
		}
	}
}

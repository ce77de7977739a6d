package ingest

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"grebe/internal/cli"
)

// passwordVariable has the database's password.
const passwordVariable = "GREBE_SQL_PASSWORD"

// connectWithin bounds how long a database may take to accept a connection.
const connectWithin = 15 * time.Second

// database is where a query runs.
type database struct {
	shown    string // its address without a password
	password string
	bits     bool          // BIT comes as bytes of a number
	within   time.Duration // it must greet
	open     func() (*sql.DB, error)
}

// query runs a query and returns its rows as a source. The rows are copied to a temporary file first: the database is
// busy for as long as the copy takes, and an import that fails half-way has changed nothing.
func (c *Import) query(w *cli.World) (*source, error) {
	db, err := c.database(w.Env)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(c.Query) == "" {
		return nil, cli.Usagef("--from needs --query, such as --query \"SELECT sku, title FROM products\"")
	}
	name, err := db.spool(w.Ctx, c.Query, w.Stderr)
	if err != nil {
		return nil, db.explain(err)
	}
	s := &source{path: db.shown, file: name, temporary: true, unit: "row", query: c.Query}
	if err := s.inspect(reading{kind: c.Kind, format: formatCSV, fields: c.Map, lists: c.Lists}); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// database parses --from. A password there would be visible to every user of the machine.
func (c *Import) database(env []string) (*database, error) {
	text, variable := c.From, false
	if name, ok := strings.CutPrefix(text, "env:"); ok {
		if text = variableOf(env, name); text == "" {
			return nil, cli.Usagef("--from: the variable %s is not set: it has the address of the database", name)
		}
		variable = true
	}
	u, err := url.Parse(text)
	if strings.Contains(text, "@") && (err != nil || u.User == nil) { // what seems to be the host may be a password
		return nil, cli.Usagef("--from: not an address such as mysql://user@host/database: write /, ?, #, %% and : of a " +
			"user or a password as %%2F, %%3F, %%23, %%25 and %%3A")
	}
	if err != nil {
		return nil, cli.Usagef("--from: not an address such as mysql://user@host/database")
	}
	password, given := u.User.Password()
	if given && !variable {
		return nil, cli.Usagef("--from: a password on the command line is visible to other users of this machine: leave it "+
			"out and set %s, "+
			"or give --password-file FILE, or put the whole address into a variable and give --from env:NAME", passwordVariable)
	}
	for _, name := range []string{"password", "passwd", "sslpassword"} {
		if u.Query().Has(name) && !variable {
			return nil, cli.Usagef("--from: %s on the command line is visible to other users of this machine: set %s, "+
				"or put the whole address into a variable and give --from env:NAME", name, passwordVariable)
		}
	}
	if !given {
		if password, err = c.password(env); err != nil {
			return nil, err
		}
	}
	u.User = url.User(u.User.Username())
	db := &database{shown: u.Redacted(), password: password, within: connectWithin}
	db.shown, _, _ = strings.Cut(db.shown, "?")
	switch u.Scheme {
	case "mysql", "mariadb":
		db.bits = true
		db.open = func() (*sql.DB, error) { return openMySQL(u, password) }
	case "postgres", "postgresql":
		db.open = func() (*sql.DB, error) { return openPostgres(u, password) }
	default:
		return nil, cli.Usagef("--from: %q is not a database that can be read: want mysql://user@host/database or "+
			"postgres://user@host/database", u.Scheme)
	}
	return db, nil
}

func variableOf(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func (c *Import) password(env []string) (string, error) {
	if c.PasswordFile == "" {
		return variableOf(env, passwordVariable), nil
	}
	data, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", cli.Usagef("--password-file: %w", err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

func openMySQL(u *url.URL, password string) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = u.User.Username(), password, strings.TrimPrefix(u.Path, "/")
	cfg.Net, cfg.Addr = "tcp", u.Host
	if u.Port() == "" {
		cfg.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	cfg.ParseTime, cfg.Loc, cfg.Timeout = true, time.UTC, connectWithin
	cfg.Params = map[string]string{"time_zone": "'+00:00'"} // else TIMESTAMPs come in the server's zone
	cfg.Logger = &mysql.NopLogger{}
	for name, values := range u.Query() {
		switch value := values[0]; name {
		case "socket":
			cfg.Net, cfg.Addr = "unix", value
		case "tls":
			cfg.TLSConfig = value
		default:
			return nil, cli.Usagef("--from: unknown option %q: want socket=FILE or tls=true", name)
		}
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

func openPostgres(u *url.URL, password string) (*sql.DB, error) {
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, cli.Usagef("--from: not the address of a PostgreSQL database: %v", err)
	}
	if password != "" {
		cfg.Password = password
	}
	cfg.ConnectTimeout = connectWithin
	return stdlib.OpenDB(*cfg), nil
}

// explain says what to do about an error of the database, and leaves out the password.
func (d *database) explain(err error) error {
	text := err.Error()
	if d.password != "" {
		text = strings.ReplaceAll(text, d.password, "…")
	}
	var refused *mysql.MySQLError
	var failed *pgconn.PgError
	var unreachable net.Error
	code := ""
	switch {
	case errors.As(err, &refused):
		code = strconv.Itoa(int(refused.Number))
	case errors.As(err, &failed):
		code = failed.Code
	}
	remedy := ""
	switch code {
	case "1045", "1698", "28P01", "28000":
		remedy = "check the user and the password, which comes from " + passwordVariable + " or --password-file"
	case "1044", "1142", "1143", "42501":
		remedy = "the user may not read this: grant SELECT"
	case "1049", "3D000":
		remedy = "check the name of the database in --from"
	case "1146", "42P01":
		remedy = "check the table in --query"
	case "1054", "42703":
		remedy = "check the columns in --query"
	case "1064", "42601":
		remedy = "check --query"
	case "1053", "1927", "57P01", "57P02", "57P03":
		remedy = lostConnection
	case "1317", "1969", "3024", "57014":
		remedy = "the database stopped the query: is there a limit of time, such as statement_timeout or max_statement_time?"
	case "1792", "25006":
		remedy = "an import only reads: --query must be a SELECT"
	case "":
		if errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) {
			remedy = lostConnection
		} else if errors.As(err, &unreachable) || errors.Is(err, os.ErrNotExist) {
			remedy = "does the database run there, and does a firewall let you through?"
		}
	}
	if remedy != "" {
		return fmt.Errorf("%s: %s: %s", d.shown, text, remedy)
	}
	return fmt.Errorf("%s: %s", d.shown, text)
}

const lostConnection = "the connection to the database broke: nothing was imported; run the command again"

// spool runs a query in a transaction that only reads, and writes its rows as CSV to a temporary file.
func (d *database) spool(ctx context.Context, query string, log io.Writer) (name string, err error) {
	db, err := d.open()
	if err != nil {
		return "", err
	}
	defer db.Close()
	greeting, end := context.WithTimeout(ctx, d.within) // MySQL's own limit ends when it is connected
	err = db.PingContext(greeting)
	end()
	if err != nil {
		return "", err
	}
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback() }() // nothing was changed
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	f, err := os.CreateTemp("", "grebe-import-*")
	if err != nil {
		return "", err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = d.copyRows(rows, w, log)
	if err = errors.Join(err, w.Flush(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// copyRows writes rows as CSV.
func (d *database) copyRows(rows *sql.Rows, w *bufio.Writer, log io.Writer) error {
	types, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	if len(types) == 0 {
		return errors.New("the query returns no columns: want a SELECT")
	}
	arrays, bits := make([]bool, len(types)), make([]bool, len(types))
	values, targets := make([]any, len(types)), make([]any, len(types))
	for i, t := range types {
		arrays[i] = strings.HasPrefix(t.DatabaseTypeName(), "_") // PostgreSQL's name of an array
		bits[i] = d.bits && t.DatabaseTypeName() == "BIT"
		targets[i] = &values[i]
		writeCell(w, t.Name(), i, len(types))
	}
	begun := time.Now()
	told, n := begun, 0
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return fmt.Errorf("row %d: %w", n+1, err)
		}
		for i, v := range values {
			text := sqlText(v)
			if b, ok := v.([]byte); ok && bits[i] {
				text = new(big.Int).SetBytes(b).String()
			}
			if arrays[i] && v != nil {
				if text, err = arrayText(text); err != nil {
					return fmt.Errorf("row %d, column %s: %w", n+1, types[i].Name(), err)
				}
			}
			writeCell(w, text, i, len(values))
		}
		if n++; n%1024 == 0 && time.Since(told) > 5*time.Second {
			told = time.Now()
			fmt.Fprintf(log, "%s: %d rows read, %.0f rows/s\n", d.shown, n, float64(n)/time.Since(begun).Seconds())
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("after row %d: %w", n, err)
	}
	return nil
}

// writeCell writes a cell in quotes, and what follows it. An error is the writer's, which Flush returns.
func writeCell(w *bufio.Writer, text string, i, n int) {
	if text != "" {
		_ = w.WriteByte('"')
		_, _ = w.WriteString(strings.ReplaceAll(text, `"`, `""`))
		_ = w.WriteByte('"')
	} else if n == 1 {
		_, _ = w.WriteString(`""`) // a record of one empty cell is not a blank line
	}
	if i == n-1 {
		_ = w.WriteByte('\n')
		return
	}
	_ = w.WriteByte(',')
}

// sqlText returns a value as text; NULL is "".
func sqlText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []byte:
		return string(v)
	case string:
		return v
	case time.Time:
		if v.IsZero() { // MySQL's 0000-00-00
			return ""
		}
		return v.UTC().Format(time.RFC3339Nano)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case float32:
		return strconv.FormatFloat(float64(v), 'f', -1, 32)
	}
	return fmt.Sprint(v)
}

// arrayText turns an array as PostgreSQL writes it, such as {a,"b c",NULL}, into a JSON list. NULLs are left out.
func arrayText(s string) (string, error) {
	body, opens := strings.CutPrefix(s, "{")
	body, closes := strings.CutSuffix(body, "}")
	if !opens || !closes { // arrays with bounds, such as [2:3]={a,b}, are refused too
		return "", fmt.Errorf("%.40q is not an array of one dimension", s)
	}
	list := []string{}
	for body != "" {
		var element strings.Builder
		quoted := body[0] == '"'
		i := 0
		if quoted {
			i = 1
		}
		for i < len(body) && (quoted && body[i] != '"' || !quoted && body[i] != ',') {
			if body[i] == '\\' && i+1 < len(body) {
				i++
			} else if !quoted && body[i] == '{' {
				return "", fmt.Errorf("%.40q is an array of arrays, which cannot be imported", s)
			}
			element.WriteByte(body[i])
			i++
		}
		if quoted {
			i++
		}
		if text := element.String(); quoted || !strings.EqualFold(text, "NULL") {
			list = append(list, text)
		}
		if i >= len(body) {
			break
		}
		body = body[i+1:]
	}
	out, err := json.Marshal(slices.Clip(list))
	return string(out), err
}

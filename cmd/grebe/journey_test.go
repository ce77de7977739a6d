package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/parquet-go/parquet-go"
	"github.com/redis/rueidis"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"grebe/embed/redisserver"
	"grebe/internal/cli"
	"grebe/internal/databasetest"
	"grebe/shop/demo"
)

// fullJourney reports whether the journeys take all data, which takes minutes: GREBE_JOURNEY=full.
func fullJourney() bool { return os.Getenv("GREBE_JOURNEY") == "full" }

// beauty is where Amazon Beauty lies on the machines of developers.
const beauty = "../../../shared/data/beauty"

// thing is a product of a company.
type thing struct {
	SKU   string  `parquet:"sku"`
	Title string  `parquet:"title"`
	Brand string  `parquet:"brand"`
	SID   []int32 `parquet:"sid"`
}

// purchase is an event of a company.
type purchase struct {
	ID   string `parquet:"id" json:"id"`
	User string `parquet:"uid" json:"user"`
	Item string `parquet:"sku" json:"item"`
	Time int64  `parquet:"at" json:"time"`
}

// company returns products and purchases: invented ones, or Amazon Beauty.
func company(t *testing.T) (things []thing, bought []purchase) {
	t.Helper()
	if !fullJourney() {
		words := strings.Fields("red blue soap cream brush large small lamp rose mint salt sea night day hand face")
		for i := range 300 {
			title := fmt.Sprintf("%s %s %s, no. %d; \"ünusual\"", words[i%16], words[i/3%16], words[i/7%16], i)
			things = append(things, thing{SKU: fmt.Sprint("B", 1000+i), Title: title, Brand: words[i%5]})
		}
		for u := range 40 {
			for k := range 3 + u%9 {
				bought = append(bought, purchase{fmt.Sprintf("%d-%d", u, k), fmt.Sprint("u", u), things[(u*37+k*k*11)%300].SKU,
					int64(1_700_000_000 + 100*u + k)})
			}
		}
		return things, bought
	}
	lines := func(name string, do func(line string)) {
		f, err := os.Open(filepath.Join(beauty, name))
		if err != nil {
			t.Skipf("the full journey needs Amazon Beauty: %v", err)
		}
		defer f.Close()
		in := bufio.NewScanner(f)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			do(in.Text())
		}
		if err := in.Err(); err != nil {
			t.Fatal(err)
		}
	}
	skus := map[string]string{}
	lines("beauty_joined.tsv", func(line string) {
		cells := strings.Split(line, "\t")
		if len(cells) < 3 || cells[0] == "item_id" {
			return
		}
		brand, _, _ := strings.Cut(cells[2], " ")
		brand = regexp.MustCompile(`[^A-Za-z0-9]`).ReplaceAllString(brand, "") // a cell with [ or ; would be a list
		skus[cells[0]] = cells[1]
		things = append(things, thing{SKU: cells[1], Title: cells[2], Brand: brand})
	})
	lines("Beauty.txt", func(line string) {
		cells := strings.Fields(line)
		for k, item := range cells[1:] {
			bought = append(bought, purchase{cells[0] + "-" + fmt.Sprint(k), "u" + cells[0], skus[item],
				int64(1_400_000_000 + len(bought))})
		}
	})
	return things, bought
}

// journeyConfig is a configuration with the toy's model, whose three levels have 64 codes each.
func journeyConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(demoData, demo.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("./checkpoint", filepath.Join(demoData, "checkpoint"), "{attributes.category}",
		"{attributes.brand}").Replace(string(text))
	config = regexp.MustCompile(`(?m)^    codes: .*$`).ReplaceAllString(config,
		"    codes: {first_token: [0, 64, 128], size: [64, 64, 64]}")
	config = regexp.MustCompile(`(?m)^catalog: .*$`).ReplaceAllString(config, `cache: {ahead: "off"}`)
	config = strings.Replace(config, "cache: {host_memory: 256MiB}\n", "", 1)
	path := filepath.Join(t.TempDir(), "grebe.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// succeeds runs grebe, which must succeed.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := grebe(t, args...)
	if code != cli.Done {
		t.Fatalf("grebe %s: exit code %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// jsonLines writes values as NDJSON.
func jsonLines[T any](t *testing.T, name string, values []T) string {
	t.Helper()
	var out []string
	for _, v := range values {
		line, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(line))
	}
	return writeLines(t, name, out...)
}

// withCodes has grebe codes make the semantic IDs of things.
func withCodes(t *testing.T, config string, things []thing) {
	t.Helper()
	var lines []map[string]any
	for i := range things {
		lines = append(lines, map[string]any{"id": things[i].SKU, "text": things[i].Title,
			"attributes": map[string][]string{"brand": {things[i].Brand}}})
	}
	dir := t.TempDir()
	coded := filepath.Join(dir, "coded.ndjson")
	succeeds(t, "codes", jsonLines(t, "items.ndjson", lines), "-c", config, "--codebook", filepath.Join(dir, "book"),
		"--sizes", "64,64,64", "-o", coded)
	text, err := os.ReadFile(coded)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var it struct {
			ID    string
			Codes []int32
		}
		if err := json.Unmarshal([]byte(line), &it); err != nil || i >= len(things) || it.ID != things[i].SKU ||
			len(it.Codes) != 3 {
			t.Fatalf("line %d of the items with codes is %s: %v", i, line, err)
		}
		things[i].SID = it.Codes
	}
}

// parquetOf writes rows to a file.
func parquetOf[T any](t *testing.T, name string, rows []T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := parquet.WriteFile(path, rows); err != nil {
		t.Fatal(err)
	}
	return path
}

// fillDatabase creates a table of things. list writes codes as the database does.
func fillDatabase(t *testing.T, driver, address, column string, things []thing, list func([]int32) string) {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	run := func(query string) {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%.80s: %v", query, err)
		}
	}
	run(`CREATE TABLE products (n INT PRIMARY KEY, sku VARCHAR(40), title VARCHAR(4000), brand VARCHAR(400), sid ` +
		column + `)`)
	quote := func(s string) string {
		if driver == "mysql" {
			s = strings.ReplaceAll(s, `\`, `\\`)
		}
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	var rows []string
	for i, x := range things {
		rows = append(rows, fmt.Sprintf("(%d,%s,%s,%s,%s)", i, quote(x.SKU), quote(x.Title), quote(x.Brand),
			quote(list(x.SID))))
		if len(rows) == 1000 || i == len(things)-1 {
			run("INSERT INTO products VALUES " + strings.Join(rows, ","))
			rows = rows[:0]
		}
	}
}

const (
	thingMap = "id=sku,text=title,attributes.brand=brand,codes=sid"
	allRows  = "SELECT sku, title, brand, sid FROM products ORDER BY n"
)

// journey is a company's data on its way.
type journey struct {
	config string
	things []thing
	bought []purchase
}

// arrive serves a folder and, with a stream's arguments, has it follow the stream to its end. It returns all that the
// server has and recommends.
func (j *journey) arrive(t *testing.T, dir string, stream ...string) string {
	t.Helper()
	s := startServer(t, j.config, "--data-dir", dir, "--slo-ms", "60000")
	defer s.kill()
	count := map[string]int{}
	for i := range j.bought {
		count[j.bought[i].User]++
	}
	last := j.bought[len(j.bought)-1].User
	var user struct{ Events []json.RawMessage }
	if len(stream) > 0 {
		stream = append([]string{"stream", "--topic", "bought", "--kind", "events", "--server", s.url,
			"--dead-letters", filepath.Join(t.TempDir(), "dead")}, stream...)
		cmd := exec.Command(binary, stream...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(3 * time.Minute); len(user.Events) < count[last]; time.Sleep(20 * time.Millisecond) {
			if answer := s.call(http.MethodGet, "/v1/users/"+last, ""); answer != nil && json.Unmarshal(answer, &user) != nil ||
				time.Now().After(end) {
				t.Fatalf("the last events did not come: %s", answer)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	generated(t, s.call)
	h := sha256.New()
	for u, want := range count {
		user.Events = nil
		if answer := s.call(http.MethodGet, "/v1/users/"+u, ""); json.Unmarshal(answer, &user) != nil ||
			len(user.Events) != want {
			t.Fatalf("user %s has %d events, want %d: %s", u, len(user.Events), want, answer)
		}
	}
	for i := range j.bought { // in order: a map has none
		if u := j.bought[i].User; count[u] > 0 {
			count[u] = 0
			fmt.Fprintf(h, "%s\n", s.call(http.MethodGet, "/v1/users/"+u, ""))
		}
	}
	var c struct {
		Items, Users json.RawMessage
		Digest       string
	}
	if err := json.Unmarshal(s.call(http.MethodGet, "/v1/catalog", ""), &c); err != nil {
		t.Fatal(err)
	}
	out := fmt.Sprintf("%s items %s, %s users %x\n", c.Items, c.Digest, c.Users, h.Sum(nil))
	brand := j.things[0].Brand
	for i := range 10 {
		u := j.bought[i*len(j.bought)/10].User
		for _, rules := range []string{
			`"exclude_seen":true,"quota":{"brand":2}`,
			fmt.Sprintf(`"boost":{"brand":{%q:2.5}},"quota":{"brand":3}`, brand),
			fmt.Sprintf(`"filter":{"brand":[%q]},"temperature":1,"seed":%d`, brand, i),
		} {
			out += found(t, s, fmt.Sprintf(`{"user":{"id":%q},"n":8,"beam_width":64,%s}`, u, rules)) + "\n"
		}
	}
	return out
}

// found returns the results of a recommendation, of which there must be some.
func found(t *testing.T, s *crashServer, body string) string {
	t.Helper()
	var a struct{ Results []json.RawMessage }
	answer := s.call(http.MethodPost, "/v1/recommend", body)
	if err := json.Unmarshal(answer, &a); err != nil || len(a.Results) == 0 {
		t.Fatalf("%s: %s, %v", body, answer, err)
	}
	return fmt.Sprintf("%s", a.Results)
}

// From a company's tables and events to recommendations with rules: MariaDB and Kafka, PostgreSQL and a Redis stream,
// and Parquet files end in the same catalog, the same users and the same answers.
func TestJourney(t *testing.T) {
	j := &journey{config: journeyConfig(t)}
	j.things, j.bought = company(t)
	withCodes(t, j.config, j.things)
	dir := filepath.Join(t.TempDir(), "parquet")
	succeeds(t, "import", parquetOf(t, "items.parquet", j.things), "--kind", "items", "--map", thingMap, "--data-dir", dir)
	succeeds(t, "import", parquetOf(t, "events.parquet", j.bought), "--kind", "events", "--map",
		"id=id,user=uid,item=sku,time=at", "--data-dir", dir)
	want := j.arrive(t, dir)
	compare := func(t *testing.T, got string) {
		t.Helper()
		if got != want {
			t.Errorf("the journey ends with\n%.2000s\nthat from Parquet with\n%.2000s", got, want)
		}
	}
	join := func(codes []int32, open, end string) string {
		return open + strings.Trim(strings.ReplaceAll(fmt.Sprint(codes), " ", ","), "[]") + end
	}
	t.Run("mariadb and kafka", func(t *testing.T) {
		db := databasetest.MariaDB(t)
		_, socket, _ := strings.Cut(db.URL, "socket=")
		fillDatabase(t, "mysql", "shop:"+db.Password+"@unix("+socket+")/shop", "JSON", j.things,
			func(c []int32) string { return join(c, "[", "]") })
		t.Setenv("GREBE_SQL_PASSWORD", db.Password)
		dir := filepath.Join(t.TempDir(), "data")
		succeeds(t, "import", "--from", db.URL, "--query", allRows, "--kind", "items", "--map", thingMap, "--data-dir", dir)
		brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "bought"))
		if err != nil {
			t.Fatal(err)
		}
		defer brokers.Close()
		client, err := kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...), kgo.DefaultProduceTopic("bought"))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var records []*kgo.Record
		for _, b := range j.bought {
			line, err := json.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			records = append(records, &kgo.Record{Value: line})
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		compare(t, j.arrive(t, dir, "--kafka", brokers.ListenAddrs()[0]))
	})
	t.Run("postgres and redis", func(t *testing.T) {
		db := databasetest.Postgres(t)
		redis, err := redisserver.Start()
		if errors.Is(err, redisserver.ErrAbsent) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer redis.Stop()
		whole, err := url.Parse(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		whole.User = url.UserPassword("shop", db.Password)
		fillDatabase(t, "pgx", whole.String(), "INT[]", j.things, func(c []int32) string { return join(c, "{", "}") })
		t.Setenv("GREBE_SQL_PASSWORD", db.Password)
		dir := filepath.Join(t.TempDir(), "data")
		succeeds(t, "import", "--from", db.URL, "--query", allRows, "--kind", "items", "--map", thingMap, "--data-dir", dir)
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis.Addr}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, b := range j.bought {
			line, err := json.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			add := client.B().Xadd().Key("bought").Id("*").FieldValue().FieldValue("value", string(line)).Build()
			if err := client.Do(t.Context(), add).Error(); err != nil {
				t.Fatal(err)
			}
		}
		compare(t, j.arrive(t, dir, "--redis", redis.Addr, "--consumer", "one"))
	})
}

// A wrong file that was imported over a served catalog is undone under load: items, texts and recommendations are those
// from before, and no request fails.
func TestUndoUnderLoad(t *testing.T) {
	wrong := 5_000
	if fullJourney() {
		wrong = 100_000
	}
	t.Setenv("XDG_CACHE_HOME", t.TempDir()) // where an import through a server keeps its state
	s := startServer(t, journeyConfig(t), "--data-dir", t.TempDir(), "--slo-ms", "60000")
	defer s.kill()
	line := func(i int, text string, turn int) string {
		return fmt.Sprintf(`{"id":"i%d","text":"%s %d","codes":[%d,%d,%d],"attributes":{"brand":["b%d"]}}`, i, text, i,
			(i+turn)%64, i/64%64, i/4096%64, i%7)
	}
	const good = 300
	var right, bad []string
	for i := range wrong {
		if i < good {
			right = append(right, line(i, "a good thing", 0))
		}
		bad = append(bad, line(i, "rubbish", 5))
	}
	succeeds(t, "import", writeLines(t, "items.ndjson", right...), "--server", s.url)
	generated(t, s.call)
	const ask = `{"user":{"text":"customer %d","history":["i1","i2"]},"n":10,"beam_width":64,"quota":{"brand":3}}`
	state := func() string {
		var out strings.Builder
		for i := range good + 5 {
			fmt.Fprintf(&out, "%s\n", s.call(http.MethodGet, fmt.Sprint("/v1/items/i", i), ""))
		}
		for i := range 10 {
			fmt.Fprintf(&out, "%s\n", found(t, s, fmt.Sprintf(ask, i)))
		}
		return out.String()
	}
	want := state()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var asked, failed atomic.Int64
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := w; ctx.Err() == nil; i += 3 {
				answer := s.call(http.MethodPost, "/v1/recommend", fmt.Sprintf(ask, i%50))
				if asked.Add(1); answer == nil {
					failed.Add(1)
				}
			}
		})
	}
	succeeds(t, "import", writeLines(t, "items.ndjson", bad...), "--server", s.url, "--force")
	generated(t, s.call)
	if state() == want {
		t.Error("the wrong file changed nothing: the test says nothing")
	}
	began := time.Now()
	if s.call(http.MethodPost, "/v1/catalog:rollback", `{}`) == nil {
		t.Fatal("no rollback")
	}
	took := time.Since(began)
	got := state()
	before := asked.Load()
	for end := time.Now().Add(time.Minute); asked.Load() < before+20 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	wg.Wait()
	if got != want {
		t.Errorf("after the undo the server has\n%.3000s\nwant\n%.3000s", got, want)
	}
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	t.Logf("%d items undone in %v beside %d requests", wrong, took.Round(time.Millisecond), asked.Load())
}

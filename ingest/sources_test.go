package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/datadir"
)

// run imports and returns everything printed and the error's text.
func run(t *testing.T, i *Import, stdin io.Reader) string {
	t.Helper()
	var b bytes.Buffer
	if i.Lists == "" {
		i.Lists = ";"
	}
	if err := i.Run(&cli.World{Ctx: t.Context(), Stdin: stdin, Stdout: &b, Stderr: &b}); err != nil {
		fmt.Fprintf(&b, "error: %v\n", err)
	}
	return b.String()
}

// digest returns what is in a folder's catalog: items as a digest, users with histories and events as text.
func contents(t *testing.T, dir string) string {
	t.Helper()
	c, err := catalog.Open(datadir.Catalog(dir), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := c.Stats()
	out := fmt.Sprintf("%d items %s, %d users:", s.Items, s.Digest, s.Users)
	for _, id := range []string{"u1", "u2", "u3"} {
		if u, ok := c.User(id); ok {
			out += fmt.Sprintf(" %s %q %v", id, u.GetText(), u.History)
			for _, e := range u.Events {
				out += fmt.Sprintf(" %s@%d/%d%v", e.Item, e.Time, e.Action, e.Features)
			}
		}
	}
	return out
}

func file(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstded(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

// product is a row of the Parquet file.
type product struct {
	SKU   int64    `parquet:"sku"`
	Title string   `parquet:"title"`
	Price float64  `parquet:"price,optional"`
	Tags  []string `parquet:"tags,list"`
	Codes []int32  `parquet:"sid"`
	Other string   `parquet:"other"`
}

func parquetFile(t *testing.T, rows []product) []byte {
	t.Helper()
	var b bytes.Buffer
	// Small pages and groups: a reader must go on over their ends.
	w := parquet.NewGenericWriter[product](&b, parquet.PageBufferSize(256), parquet.MaxRowsPerRowGroup(700),
		parquet.Compression(&parquet.Snappy))
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const productMap = "id=sku,text=title,attributes.price=price:number,attributes.tag=tags,codes=sid"

// The same catalog comes out of every format, and of every compression.
func TestSourcesAgree(t *testing.T) {
	const n = 1500
	var nd, mapped, csv, tsv strings.Builder
	csv.WriteString("\ufeffsku,title,price,tags,sid,other\r\n")
	tsv.WriteString("sku\ttitle\tprice\ttags\tsid\tother\n")
	rows := make([]product, n)
	for i := range n {
		title := fmt.Sprintf("Tent \"%d\", größe;\nzwei", i)
		p := product{SKU: int64(i), Title: title, Price: float64(i) / 4, Codes: []int32{int32(i % 7), 3}, Other: "x"}
		if i%3 > 0 {
			p.Tags = []string{"a", fmt.Sprint("b", i)}[:i%3]
		}
		rows[i] = p
		attributes := ""
		if i > 0 { // the zero of an optional column is absent
			attributes = fmt.Sprintf(`"price":["%v"]`, p.Price)
		}
		quoted := make([]string, len(p.Tags))
		for k, tag := range p.Tags {
			quoted[k] = fmt.Sprintf("%q", tag)
		}
		list := strings.Join(quoted, ",")
		if list != "" {
			attributes += `,"tag":[` + list + "]"
		}
		price := ""
		if i > 0 {
			price = fmt.Sprint(p.Price)
		}
		fmt.Fprintf(&nd, `{"id":"%d","text":%q,"codes":[%d,3],"attributes":{%s}}`+"\n", i, title, i%7, attributes)
		fmt.Fprintf(&mapped, `{"sku":%d,"title":%q,"price":%s,"tags":[%s],"sid":[%d,3]}`+"\n", i, title,
			map[bool]string{true: price, false: "null"}[i > 0], list, i%7)
		cell := `"` + strings.ReplaceAll(title, `"`, `""`) + `"`
		fmt.Fprintf(&csv, "%d,%s,%s,%s,%d;3,x\r\n", i, cell, price, strings.Join(p.Tags, ";"), i%7)
		jsonTags := `"[` + strings.ReplaceAll(list, `"`, `""`) + `]"`
		fmt.Fprintf(&tsv, "%d\t%s\t%s\t%s\t\"[%d,3]\"\tx\n", i, cell, price, jsonTags, i%7)
	}
	dir := t.TempDir()
	run(t, &Import{Files: []string{file(t, "items.ndjson", []byte(nd.String()))}, DataDir: dir}, nil)
	want := contents(t, dir)
	if !strings.HasPrefix(want, "1500 items") {
		t.Fatal(want)
	}
	table := parquetFile(t, rows)
	for name, data := range map[string][]byte{
		"items.csv": []byte(csv.String()), "items.tsv": []byte(tsv.String()), "items.jsonl": []byte(mapped.String()),
		"items.parquet": table,
		"items.csv.gz":  gzipped(t, []byte(csv.String())), "items.tsv.zst": zstded(t, []byte(tsv.String())),
		"items.ndjson.gz":  gzipped(t, []byte(mapped.String())),
		"items.parquet.gz": gzipped(t, table),
	} {
		dir := t.TempDir()
		out := run(t, &Import{Files: []string{file(t, name, data)}, DataDir: dir, Map: productMap}, nil)
		if got := contents(t, dir); got != want {
			t.Errorf("%s: the catalog is %s, want %s:\n%s", name, got, want, out)
		}
		if strings.Contains(name, "csv") && !strings.Contains(out, "does not name: other") {
			t.Errorf("%s: the column that is not imported is not reported:\n%s", name, out)
		}
	}
	for format, data := range map[string][]byte{"csv": zstded(t, []byte(csv.String())), "parquet": table} {
		dir := t.TempDir()
		out := run(t, &Import{Files: []string{"-"}, Kind: "items", Format: format, DataDir: dir, Map: productMap},
			bytes.NewReader(data))
		if got := contents(t, dir); got != want {
			t.Errorf("standard input as %s: %s, want %s:\n%s", format, got, want, out)
		}
	}
}

// Users and events come from tables too, and importing events again changes nothing.
func TestUsersAndEventsFromTables(t *testing.T) {
	users := file(t, "people.csv", []byte("who,items,about\nu1,a;b,hello\nu2,\"[\"\"c\"\"]\",\n"))
	events := file(t,
		"log.tsv",
		[]byte("uid\tsku\tat\tkind\tvalue\nu1\tx\t2026-11-18T09:00:01Z\t2\t0.5\nu3\ty\t1795000000\t\t\nu1\tw\t2026-11-18 "+
			"09:00:00\t1\t\n"))
	dir := t.TempDir()
	const m = "user=uid,item=sku,time=at,action=kind,features.v=value"
	out := run(t, &Import{Files: []string{users}, Map: "id=who,history=items,text=about", DataDir: dir}, nil)
	out += run(t, &Import{Files: []string{events}, Map: m, DataDir: dir}, nil)
	const want = `0 items 00000000000000000000000000000000, 3 users: u1 "hello" [a b w x] ` +
		`w@1794992400/1map[] x@1794992401/2map[v:0.5] u2 "" [c] u3 "" [] y@1795000000/0map[]`
	if got := contents(t, dir); got != want {
		t.Errorf("got  %s\nwant %s\n%s", got, want, out)
	}
	if !strings.Contains(out, "users (by its columns)") || !strings.Contains(out, "events (by its columns)") ||
		!strings.Contains(out, "3 lines: 3 created") {
		t.Error(out)
	}
	if out := run(t, &Import{Files: []string{events}, Map: m, DataDir: dir}, nil); !strings.Contains(out,
		"3 lines: 0 created, 0 replaced, 0 deleted, 3 unchanged") {
		t.Error(out)
	}
	if got := contents(t, dir); got != want {
		t.Errorf("imported again: %s", got)
	}
	lines := file(t, "events.ndjson", []byte(`{"user":"u3","item":"z","time":1795000001,"id":"e1"}`+"\n"))
	if out := run(t, &Import{Files: []string{lines}, DataDir: dir}, nil); !strings.Contains(out, "1 line: 1 created") {
		t.Error(out)
	}
}

// Bad data ends with an error that says where it is and what to do.
func TestBadData(t *testing.T) {
	var text strings.Builder
	text.WriteString("id,text\n")
	for i := range 20_000 {
		fmt.Fprintf(&text, "%d,some words that repeat\n", i)
	}
	whole, other := gzipped(t, []byte(text.String())), zstded(t, []byte(text.String()))
	rows := make([]product, 3000)
	for i := range rows {
		rows[i].SKU = int64(i)
	}
	table := parquetFile(t, rows)
	spoilt := bytes.Clone(table)
	for i := 4; i < len(table)/2; i += 64 {
		spoilt[i] ^= 0xff
	}
	for _, c := range []struct{ name, data, fields, want string }{
		{"items.csv", "id,price\n1,2\n2,cheap\n", "id=id,attributes.price=price:number",
			`items\.csv:3: column price: want a number, not "cheap".*--on-error skip`},
		{"items.csv", "id,codes\n1,2;x\n", "", `items\.csv:2: column codes: element 1: want an integer, not "x"`},
		{"items.csv", "id,codes\n1,[2\n", "", `items\.csv:2: column codes: "\[2" is not a JSON list`},
		{
			"items.csv", "id,text\n1,a\n2,b\n1,c\n", "",
			`items\.csv:4: id "1" is in line 2 of .*items\.csv too: .*--duplicates last`},
		{"items.csv", "sku,text\n1,a\n", "", `items\.csv: the column "sku" is not a field of items.*--map`},
		{"items.csv", "sku,text\n1,a\n", "id=ski", `items\.csv: no column "ski" for the field id: the columns are sku, text`},
		{"items.csv", "sku,text\n1,a\n", "text=text", `no column for the field id: .*--map id=COLUMN`},
		{"items.csv", "sku,text\n1,a\n", "id=sku,colour=text",
			`items have no field "colour"; they have attributes\.NAME, codes`},
		{"items.csv", "id,text\n1,a\n2,\xff\xfe\n", "", `items\.csv:3: column text: invalid UTF-8.*iconv`},
		{"items.csv", "\xff\xfei\x00d\x00", "", `UTF-16.*iconv`},
		{"items.csv", "id,text\n1,a\n2,b,c\n", "", `items\.csv:3: 3 cells, the header has 2: the columns changed`},
		{"items.csv", "id,text\n1,a\nid,text\n2,b\n", "", `items\.csv:3: the header comes again`},
		{"items.csv", "id,text\n1,5\" pipe\n", "", `items\.csv:2: column text: a quote inside a cell`},
		{"items.csv", "id,text\n1,\"a\"b\n", "", `items\.csv:2: column text: text after the closing quote`},
		{"items.csv", "id,text\n1,\"a\n2,b\n", "", `items\.csv:2: column text: a quote is never closed`},
		{"items.csv", "id,text\n,a\n", "", `items\.csv:2: id: is missing`},
		{"items.csv", "id,id\n1,a\n", "", `items\.csv:1: the header has the column "id" twice`},
		{"items.csv", "", "", `the file is empty: want a header`},
		{"items.csv.gz", string(whole[:len(whole)/2]), "",
			`read .*items\.csv\.gz: after line \d+: the compressed data ends too early.*again`},
		{"items.csv.zst", string(other[:len(other)/2]), "", `the compressed data ends too early`},
		{"items.csv.gz", "", "", `not gz data.*again`},
		{"items.parquet", string(table[:len(table)/2]), productMap, `not a whole Parquet file.*again`},
		{"items.csv.gz", string(whole[:len(whole)-8]) + "--------", "", `invalid checksum: the file is damaged: copy or`},
		{"items.csv.gz", "id,text\n", "", `not gz data.*not compressed`},
		{"items.csv", "id,text\r1,a\r", "", `items\.csv:1: lines end with a carriage return only.*tr `},
		{"items.csv", "sku;title\n1;a\n", "id=sku", `no column "sku".*--separator ";"`},
		{"items.csv", "sku\ttitle\n1\ta\n", "", `not a field of items.*--separator "\\t"`},
		{"items.ndjson", "{\x00\"\x00i\x00", "", `UTF-16.*iconv`},
		{"items.ndjson", "[{\"id\":\"1\"}]\n", "", `items\.ndjson:1: a JSON list.*one object per line.*jq`},
		{"items.ndjson", "{\n\"id\":\"1\"}\n", "", `items\.ndjson:1: an object over several lines.*jq`},
		{"items.ndjson", "{\"id\":\"1\"}\n{\"id\":\"caf\xe9\"}\n", "", `items\.ndjson:2: id: invalid UTF-8.*iconv`},
		{"events.ndjson", "{\"user\":\"u\",\"item\":\"" + strings.Repeat("i", 5000) + "\",\"time\":1}\n", "",
			`events\.ndjson:1: events\[0\]\.item: 5000 bytes, at most`},
		{"items.parquet", string(spoilt), productMap, `read .*items\.parquet: after row \d+: .*the file is damaged: copy or`},
		{"items.parquet", string(table), "id=title", `items\.parquet:1: id: is missing`},
		{"items.parquet", string(table), "id=sku,attributes.x=none",
			`no column "none" for the field attributes\.x: the columns are sku, title`},
		{"items.ndjson", `{"sku": 1.5}`, "id=sku", `items\.ndjson:1: column sku: want an id, not the number 1\.5`},
		{"items.ndjson", `{"sku": [1]}`, "id=sku", `items\.ndjson:1: column sku: want a text, not a list`},
		{"events.csv", "user,item\nu,i\n", "", `events\.csv:2: an event needs an id or a time`},
		{"events.csv", "user,item,time\nu,i,yesterday\n", "", `events\.csv:2: column time: want a time .* not "yesterday"`},
		{"data.csv", "a,b\n1,2\n", "", `items, users or events\?`},
	} {
		out := run(t, &Import{Files: []string{file(t, c.name, []byte(c.data))}, DataDir: t.TempDir(), Map: c.fields}, nil)
		if !regexp.MustCompile(`error: .*` + c.want).MatchString(out) {
			t.Errorf("%s %q with --map %q: want %s:\n%s", c.name, c.data[:min(len(c.data), 60)], c.fields, c.want, out)
		}
	}
}

// An import stops at a bad record and applies none after it, whatever the record lacks. Corrected, it goes on there.
func TestStopAtABadRecord(t *testing.T) {
	for name, lines := range map[string][3]string{
		"items.ndjson":  {`{"id":"1"}`, `{"text":"no id"}`, `{"id":"3"}`},
		"users.ndjson":  {`{"id":"u1"}`, `{"id":""}`, `{"id":"u3"}`},
		"events.ndjson": {`{"user":"u1","item":"1","time":1}`, `{"user":"u1","time":2}`, `{"user":"u3","item":"1","time":3}`},
	} {
		dir := t.TempDir()
		path := file(t, name, []byte(strings.Join(lines[:], "\n")+"\n"))
		out := run(t, &Import{Files: []string{path}, DataDir: dir}, nil)
		want := "Stopped at line 2 of " + path + "; before it 1 created, 0 replaced, 0 deleted, 0 unchanged\n"
		if !strings.Contains(out, want) ||
			strings.Count(out, name+":2: ") != 1 || strings.Contains(out, "bad;") {
			t.Errorf("%s: an import that stops at line 2:\n%s", name, out)
		}
		if err := os.WriteFile(path, []byte(lines[0]+"\n"+lines[2]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if out = run(t, &Import{Files: []string{path}, DataDir: dir}, nil); !strings.Contains(out, "Continuing at line 2") ||
			!strings.Contains(out, "2 lines: 2 created, 0 replaced, 0 deleted, 0 unchanged, 0 bad") ||
			!strings.Contains(out, "(totals of all runs; this one read 1 line)") {
			t.Errorf("%s: corrected:\n%s", name, out)
		}
	}
}

// A file that cannot be read to its end is no fault of the server.
func TestUnreadableFileIsNotTheServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	whole := gzipped(t, bytes.Repeat([]byte(`{"id":"1"}`+"\n"), 1000))
	path := file(t, "items.ndjson.gz", whole[:len(whole)-8])
	out := run(t, &Import{Files: []string{path}, Server: server.URL, Access: &cli.AccessFlags{}}, nil)
	if !strings.Contains(out, "error: read "+path+": after line ") || strings.Contains(out, "is a server running there") {
		t.Error(out)
	}
}

// Of many bad records the first twenty are listed, and the others are imported.
func TestBadRecordsAreSkipped(t *testing.T) {
	var b strings.Builder
	b.WriteString("id,codes\n")
	for i := range 100 {
		fmt.Fprintf(&b, "%d,%s\n", i, []string{"1", "x"}[i%2])
	}
	out := run(t, &Import{Files: []string{file(t, "items.csv", []byte(b.String()))}, DataDir: t.TempDir(), Skip: true},
		nil)
	if strings.Count(out, "want an integer") != 20 ||
		!strings.Contains(out, "100 lines: 50 created, 0 replaced, 0 deleted, 0 unchanged, 50 bad") {
		t.Error(out)
	}
}

// An import that was stopped goes on at the record where it was, in every format, and still finds ids that come twice.
func TestTablesAreResumed(t *testing.T) {
	var csv strings.Builder
	csv.WriteString("sku,title\n")
	rows := make([]product, 30_000)
	for i := range rows {
		rows[i] = product{SKU: int64(i), Title: fmt.Sprintf("title\nof %d", i)}
		fmt.Fprintf(&csv, "%d,\"title\nof %d\"\n", i, i)
	}
	twice := csv.String() + "7,again\n"
	for name, data := range map[string][]byte{"items.csv": []byte(csv.String()),
		"items.csv.gz": gzipped(t, []byte(csv.String())), "items.parquet": parquetFile(t, rows),
		"items-twice.csv": []byte(twice)} {
		path, dir := file(t, name, data), t.TempDir()
		ctx, stop := context.WithCancel(t.Context())
		var b bytes.Buffer
		i := &Import{Files: []string{path}, DataDir: dir, Map: "id=sku,text=title", Lists: ";"}
		i.applied = func(n int64) {
			if n > 5000 {
				stop()
			}
		}
		err := i.Run(&cli.World{Ctx: ctx, Stdout: &b, Stderr: &b})
		stop()
		if err == nil || !strings.Contains(b.String(), "Run the same command again") {
			t.Fatalf("%s: %v\n%s", name, err, b.String())
		}
		i.applied = nil
		out := run(t, i, nil)
		if !strings.Contains(out, "Continuing at ") {
			t.Errorf("%s: does not go on:\n%s", name, out)
		}
		if name == "items-twice.csv" {
			if !strings.Contains(out, `id "7" is in line 16 of `) {
				t.Errorf("%s: an id that came before the stop is not found:\n%s", name, out)
			}
			continue
		}
		if !strings.Contains(out, "30000 created") || !strings.HasPrefix(contents(t, dir), "30000 items") {
			t.Errorf("%s: %s\n%s", name, contents(t, dir), out)
		}
	}
}

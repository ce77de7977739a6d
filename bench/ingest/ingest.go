// Package ingest measures imports: items per second that are parsed and checked, and that are durable in a catalog,
// from CSV and Parquet, and events per second.
package ingest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/parquet-go/parquet-go"

	"grebe/ingest"
	"grebe/internal/cli"
)

// Options of a measurement.
type Options struct {
	Items  int    // items of each file; at least 1
	Events int    // events; 0: none
	Only   string // csv or parquet; "": both
	Once   bool   // without the dry run
	Dir    string // where files and catalogs are made; "": the folder for temporary files
	JSON   bool
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	if o.Items < 1 || o.Events < 0 {
		return errors.New("want at least one item, and no negative number of events")
	}
	if o.Only != "" && o.Only != "csv" && o.Only != "parquet" {
		return fmt.Errorf("no format %q: want csv or parquet", o.Only)
	}
	return nil
}

// Row is one measurement.
type Row struct {
	What    string  `json:"what"`
	Records int     `json:"records"`
	Bytes   int64   `json:"bytes"` // of the file
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu_seconds"` // of all threads: on a busy machine it says more than Seconds
	Rate    float64 `json:"records_per_second"`
	PeakMB  int64   `json:"peak_memory_mb"` // of the process in this measurement; 0: not known
}

// item is a row of the Parquet file.
type item struct {
	SKU      string  `parquet:"sku"`
	Title    string  `parquet:"title"`
	Price    float64 `parquet:"price"`
	Category string  `parquet:"category,dict"`
	Codes    []int32 `parquet:"codes,list"`
}

const itemMap = "id=sku,text=title,attributes.price=price:number,attributes.category=category,codes=codes"

// Run measures, and prints a table or JSON.
func Run(w *cli.World, o Options) error {
	dir, err := os.MkdirTemp(o.Dir, "grebe-bench-ingest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var rows []Row
	for _, f := range []struct {
		name  string
		n     int
		write func(path string, n int) error
	}{{"items.csv", o.Items, writeCSV}, {"items.parquet", o.Items, writeParquet}, {"events.csv", o.Events, writeEvents}} {
		if f.n == 0 || o.Only != "" && !strings.HasSuffix(f.name, o.Only) {
			continue
		}
		path := filepath.Join(dir, f.name)
		if err := f.write(path, f.n); err != nil {
			return err
		}
		for _, dry := range []bool{true, false} {
			if dry && o.Once {
				continue
			}
			row, err := measure(w.Ctx, path, f.n, dry, filepath.Join(dir, fmt.Sprint(f.name, dry)))
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if o.JSON {
		return json.NewEncoder(w.Stdout).Encode(rows)
	}
	return table(w.Stdout, rows)
}

func table(out io.Writer, rows []Row) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s %12s %9s %9s %14s %10s\n", "what", "records", "seconds", "CPU s", "records/s", "peak MB")
	for _, r := range rows {
		fmt.Fprintf(&b, "%-34s %12d %9.2f %9.2f %14.0f %10d\n", r.What, r.Records, r.Seconds, r.CPU, r.Rate, r.PeakMB)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// measure imports a file into an empty catalog, or only checks it.
func measure(ctx context.Context, path string, n int, dry bool, data string) (Row, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Row{}, err
	}
	im := &ingest.Import{Files: []string{path}, DataDir: data, Lists: ";", DryRun: dry}
	if strings.HasPrefix(filepath.Base(path), "items") {
		im.Map = itemMap
	}
	debug.FreeOSMemory()
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // else the peak is that of the process so far
	begun, before := time.Now(), cpuSeconds()
	var out strings.Builder
	if err := im.Run(&cli.World{Ctx: ctx, Stdout: &out, Stderr: io.Discard}); err != nil {
		return Row{}, err
	}
	took, cpu := time.Since(begun).Seconds(), cpuSeconds()-before
	if want := []string{fmt.Sprintf(" %d created,", n), fmt.Sprintf(" %d new,", n)}; !slices.ContainsFunc(want,
		func(s string) bool {
			return strings.Contains(out.String(), s)
		}) {
		return Row{}, fmt.Errorf("not all of %d records were imported: %s", n, out.String())
	}
	what := filepath.Base(path) + ", durable"
	if dry {
		what = filepath.Base(path) + ", parsed and checked"
	}
	return Row{What: what, Records: n, Bytes: info.Size(), Seconds: took, CPU: cpu, Rate: float64(n) / took,
		PeakMB: peak()}, os.RemoveAll(data)
}

// cpuSeconds returns the CPU time of the process so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// peak returns the most memory that the process had since it was cleared.
func peak() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	var kb int64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		return 0
	}
	return kb >> 10
}

func write(path string, body func(w *bufio.Writer)) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	body(w)
	return errors.Join(w.Flush(), f.Close())
}

func title(i int) string {
	return fmt.Sprintf("Item %d, a product with a title of some length, in colour %d", i, i%17)
}

func writeCSV(path string, n int) error {
	return write(path, func(w *bufio.Writer) {
		fmt.Fprintln(w, "sku,title,price,category,codes")
		for i := range n {
			fmt.Fprintf(w, "sku-%d,\"%s\",%d.99,category-%d,%d;%d;%d\n", i, title(i), i%500, i%97, i%256, i>>8%256, i>>16%256)
		}
	})
}

func writeParquet(path string, n int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := parquet.NewGenericWriter[item](f, parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(100_000))
	rows := make([]item, 0, 1000)
	for i := 0; i < n; {
		for rows = rows[:0]; len(rows) < cap(rows) && i < n; i++ {
			rows = append(rows, item{fmt.Sprint("sku-", i), title(i), float64(i%500) + 0.99, fmt.Sprint("category-", i%97),
				[]int32{int32(i % 256), int32(i >> 8 % 256), int32(i >> 16 % 256)}})
		}
		if _, err := w.Write(rows); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Close(), f.Close())
}

func writeEvents(path string, n int) error {
	return write(path, func(w *bufio.Writer) {
		fmt.Fprintln(w, "user,item,time,action")
		for i := range n {
			fmt.Fprintf(w, "user-%d,sku-%d,%d,1\n", i*7919%(n/20+1), i%100_000, 1_700_000_000+i/100)
		}
	})
}

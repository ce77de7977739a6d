package divide

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"grebe/alloc"
	"grebe/internal/durable"
)

// The list of a table's hottest rows, little-endian: the magic, the name's length and the number of rows as uint32, the
// name, then per row its hash as uint64 and its uses as uint32, and the CRC-32C of all before. It has hashes of keys
// and no contents: after a restart rows come from the store, and one that was deleted is not there any more.
const (
	hotMagic  = "GrebeHot\x01\x00\x00\x00"
	hotHeader = len(hotMagic) + 8
	hotRow    = 12
	mostHot   = 1 << 18 // rows: 3 MiB
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errHot = errors.New("not a list of hot rows, or damaged")

// writeHot replaces the list of a table.
func writeHot(file, table string, rows []alloc.Wanted) error {
	if err := durable.MkdirAll(filepath.Dir(file)); err != nil {
		return err
	}
	b := append(make([]byte, 0, hotHeader+len(table)+hotRow*len(rows)+4), hotMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(table)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(rows)))
	b = append(b, table...)
	for _, w := range rows {
		b = binary.LittleEndian.AppendUint64(b, w.Key)
		b = binary.LittleEndian.AppendUint32(b, w.Uses)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return durable.WriteFile(file, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// readHot returns the rows of a list; none if there is no list, or one of another table.
func readHot(file, table string) ([]alloc.Wanted, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(hotHeader+255+hotRow*mostHot+4+1)))
	if err != nil {
		return nil, err
	}
	rows, err := parseHot(b, table)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return rows, nil
}

func parseHot(b []byte, table string) ([]alloc.Wanted, error) {
	if len(b) < hotHeader+4 || string(b[:len(hotMagic)]) != hotMagic {
		return nil, errHot
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	name := int(binary.LittleEndian.Uint32(b[len(hotMagic):]))
	n := int(binary.LittleEndian.Uint32(b[len(hotMagic)+4:]))
	if name > 255 || n > mostHot || len(body) != hotHeader+name+hotRow*n || crc32.Checksum(body, castagnoli) != sum {
		return nil, errHot
	}
	if string(body[hotHeader:][:name]) != table {
		return nil, nil
	}
	rows := make([]alloc.Wanted, n)
	for i := range rows {
		at := body[hotHeader+name+hotRow*i:]
		rows[i] = alloc.Wanted{Key: binary.LittleEndian.Uint64(at), Uses: binary.LittleEndian.Uint32(at[8:])}
	}
	return rows, nil
}

// load has the rows fetched that were hottest before the start.
func (r *Refiller) load() {
	if r.cfg.File == "" {
		return
	}
	rows, err := readHot(r.cfg.File, r.cfg.Name)
	if err != nil {
		r.cfg.Log.Warn("the cache of a table begins empty: the list of rows that were hot cannot be read", "table",
			r.cfg.Name, "error", err)
		return
	}
	slices.SortFunc(rows, func(a, b alloc.Wanted) int { return cmp.Compare(b.Uses, a.Uses) })
	rows = rows[:min(len(rows), r.cfg.Rows())]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan.Load(r.seconds(), rows)
	if len(rows) > 0 {
		r.cfg.Log.Info("rows that were hot before the start are fetched", "table", r.cfg.Name, "rows", len(rows))
	}
}

// save lists the hottest rows. An empty list does not replace another: requests may not have come yet.
func (r *Refiller) save() {
	if r.cfg.File == "" {
		return
	}
	most := min(mostHot, r.cfg.Rows())
	rows := make([]alloc.Wanted, 0, most)
	r.mu.Lock()
	rows = r.plan.Hottest(rows, most, func() { // look-ups do not wait for the whole of it
		r.mu.Unlock()
		runtime.Gosched()
		r.mu.Lock()
	})
	r.mu.Unlock()
	if len(rows) > 0 {
		_ = r.trouble.Note(writeHot(r.cfg.File, r.cfg.Name, rows), "table", r.cfg.Name)
	}
}

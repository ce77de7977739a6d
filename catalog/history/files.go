package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"grebe/catalog"
	"grebe/internal/durable"
)

// FORMAT.md describes what is written here.
const (
	itemsMagic = "grebeIT2"
	plainMagic = "grebeIT1" // without texts, and without items that have no codes
	headSize   = 64         // of a head, checksum included

	maxSlots = 1 << 31 // an op of a log has a slot in 31 bits

	numberDigits = 20 // of a generation, at the end of a file's name

	unsyncedMark = 'u' // follows the last frame of a log until it was synced
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDamaged says that a file is not what was written, or not there.
var ErrDamaged = errors.New("damaged")

// file names a file of the generation; empty where nothing is kept on disk.
func (g *Generation) file(kind string) string {
	if g.dir == "" {
		return ""
	}
	return filepath.Join(g.dir, fmt.Sprintf("%s-%0*d", kind, numberDigits, g.begun.number))
}

// create writes the base and begins the log.
func (g *Generation) create() error {
	if g.dir == "" {
		return nil
	}
	g.failed = true // until all is there
	if err := durable.MkdirAll(g.dir); err != nil {
		return err
	}
	if err := WriteFile(g.file("items"), g.writeItems); err != nil {
		return err
	}
	if err := g.mapBase(); err != nil {
		return err
	}
	var err error
	if g.log, err = durable.OpenFile(g.file("log"), true); err != nil {
		return err
	}
	if err := durable.SyncDir(g.dir); err != nil {
		return err
	}
	g.size, g.failed = 0, false
	g.stored, g.safe = true, g.begun.number
	return nil
}

// mapBase has the items that were just written read from their file, so that they take no memory of the
// heap. No table of the generation may have been handed out yet.
func (g *Generation) mapBase() error {
	return g.table.base.mapped(g.file("items"))
}

// mapped reads the records of a segment, which has their marks, from the file that was written with them.
func (s *segment) mapped(name string) error {
	m, err := mapFile(name)
	if err != nil {
		return err
	}
	from := len(itemsMagic) + headSize + 16 + 8*len(s.marks)
	if len(m.data) < from+8 || s.blob != nil && len(m.data) != from+len(s.blob)+8 {
		return fmt.Errorf("%w: %s has %d bytes", ErrDamaged, name, len(m.data))
	}
	s.blob, s.owner = m.data[from:len(m.data)-8:len(m.data)-8], m
	return nil
}

func (g *Generation) writeItems(w io.Writer) error {
	s := &g.table.base
	return g.writeBase(w, s, uint64(len(s.blob)), func(out io.Writer) error {
		_, err := out.Write(s.blob)
		return err
	})
}

// writeBase writes a base with the marks and the number of a segment. records writes its records, of size bytes in all.
func (g *Generation) writeBase(w io.Writer, s *segment, size uint64, records func(io.Writer) error) error {
	sum := crc32.New(castagnoli)
	out := io.MultiWriter(w, sum)
	b := append([]byte(itemsMagic), g.begun.encode()...)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.n))
	b = binary.LittleEndian.AppendUint64(b, size)
	for _, m := range s.marks {
		b = binary.LittleEndian.AppendUint64(b, m)
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	if err := records(out); err != nil {
		return err
	}
	_, err := w.Write(binary.LittleEndian.AppendUint64(nil, uint64(sum.Sum32())))
	return err
}

// recordsOf returns the records of items. Each is valid until the next one comes.
func recordsOf(items iter.Seq[catalog.Entry]) iter.Seq[record] {
	return func(yield func(record) bool) {
		var buf []byte
		for e := range items {
			buf = content(buf[:0], e.Item)
			if !yield(record{e.Version, buf}) {
				return
			}
		}
	}
}

// stream writes a base and begins its log, as create does, but never has the records in memory: the segment that it
// returns has their marks alone. It goes over the records twice, since what the file begins with describes them all.
func (g *Generation) stream(records iter.Seq[record]) (s segment, err error) {
	size := 0
	var line []byte
	for r := range records {
		if s.n%markEvery == 0 {
			s.marks = append(s.marks, uint64(size))
		}
		line = appendRecord(line[:0], r.version, r.content)
		size += len(line)
		s.n++
		if r.bare() {
			g.begun.bare++
		}
		g.begun.digest = g.begun.digest.plus(digestOf(r.content))
	}
	g.begun.items = s.n - g.begun.bare
	if err := durable.MkdirAll(g.dir); err != nil {
		return s, err
	}
	err = WriteFile(g.file("items"), func(w io.Writer) error {
		return g.writeBase(w, &s, uint64(size), func(out io.Writer) error {
			for r := range records {
				line = appendRecord(line[:0], r.version, r.content)
				if _, err := out.Write(line); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return s, err
	}
	if g.log, err = durable.OpenFile(g.file("log"), true); err != nil {
		return s, err
	}
	return s, durable.SyncDir(g.dir)
}

// encode writes a head with a checksum of its own.
func (h *head) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, h.number)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.created.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.bare))
	b = binary.LittleEndian.AppendUint64(b, uint64(h.items))
	b = h.digest.append(b)
	b = append(b, make([]byte, headSize-8-len(b))...)
	return binary.LittleEndian.AppendUint64(b, uint64(crc32.Checksum(b, castagnoli)))
}

func decodeHead(b []byte) (h head, err error) {
	if len(b) < headSize || binary.LittleEndian.Uint64(b[headSize-8:]) != uint64(
		crc32.Checksum(b[:headSize-8], castagnoli)) {
		return h, fmt.Errorf("%w: the head's checksum is wrong", ErrDamaged)
	}
	h.number = binary.LittleEndian.Uint64(b)
	h.created = time.Unix(0, int64(binary.LittleEndian.Uint64(b[8:])))
	h.bare, h.items = int(binary.LittleEndian.Uint64(b[16:])), int(binary.LittleEndian.Uint64(b[24:]))
	h.digest = Digest{binary.BigEndian.Uint64(b[32:]), binary.BigEndian.Uint64(b[40:])}
	return h, nil
}

// frame is a version in a log.
type frame struct {
	version uint64
	created time.Time
	bare    int
	items   int
	digest  Digest
	removed []uint32
	added   []record
	at      int64 // where it begins in its log
}

func (f *frame) head() head { return head{f.version, f.created, f.bare, f.items, f.digest} }

// write appends a frame to the log. One that could not be written is cut off again, and the log is used no
// more: what comes later does not lead on from what it has.
func (g *Generation) write(f *frame) error {
	if g.dir == "" {
		return nil
	}
	if g.failed {
		return errors.New("the log could not be written before")
	}
	h := f.head()
	body := binary.AppendUvarint(h.encode(), uint64(len(f.removed)))
	for _, slot := range f.removed {
		body = binary.AppendUvarint(body, uint64(slot))
	}
	var s segment
	for _, r := range f.added {
		s.add(r.version, r.content)
	}
	body = append(binary.AppendUvarint(body, uint64(s.n)), s.blob...)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(body)))
	b = binary.LittleEndian.AppendUint64(b, uint64(crc32.Checksum(body, castagnoli)))
	b = append(b, body...)
	_, err := g.log.WriteAt(append(b, unsyncedMark), g.size)
	if err == nil {
		err = g.log.Sync()
	}
	if err != nil {
		g.failed = true
		return errors.Join(err, g.log.Truncate(g.size))
	}
	g.size += int64(len(b))
	g.safe = f.version
	_ = g.log.Truncate(g.size) // else the next frame takes the mark's place, or the next start removes it
	return nil
}

// readLog returns the whole frames of a log, how many bytes they take, and what ends them before the
// log's own end. unsure says that the last one may not be durable.
func readLog(data []byte) (frames []frame, size int64, unsure bool, err error) {
	for at := data; len(at) > 0; {
		if len(at) == 1 && at[0] == unsyncedMark {
			return frames, size, true, nil
		}
		if len(at) < 16 {
			return frames, size, false, fmt.Errorf("%w: %d bytes at its end are no frame", ErrDamaged, len(at))
		}
		n, sum := binary.LittleEndian.Uint64(at), binary.LittleEndian.Uint64(at[8:])
		if n > uint64(len(at)-16) || sum != uint64(crc32.Checksum(at[16:16+n], castagnoli)) {
			return frames, size, false, fmt.Errorf("%w: the frame at byte %d is torn or its checksum wrong", ErrDamaged, size)
		}
		f, err := decodeFrame(at[16 : 16+n])
		if err != nil {
			return frames, size, false, err
		}
		f.at = size
		frames = append(frames, f)
		size += 16 + int64(n)
		at = at[16+n:]
	}
	return frames, size, false, nil
}

func decodeFrame(b []byte) (f frame, err error) {
	h, err := decodeHead(b)
	if err != nil {
		return f, err
	}
	f = frame{version: h.number, created: h.created, bare: h.bare, items: h.items, digest: h.digest}
	w := walker(b[headSize:])
	for n := w.count(); n > 0 && len(w) > 0; n-- {
		f.removed = append(f.removed, uint32(w.count()))
	}
	n := w.count()
	blob := []byte(w)
	for range n {
		r, rest, ok := checkedNext(blob)
		if !ok {
			return f, fmt.Errorf("%w: a frame ends early", ErrDamaged)
		}
		f.added = append(f.added, r)
		blob = rest
	}
	return f, nil
}

// checkedNext takes a record off bytes that may be anything.
func checkedNext(b []byte) (record, []byte, bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return record{}, nil, false
	}
	if _, v := binary.Uvarint(b[k : k+int(n)]); v <= 0 {
		return record{}, nil, false
	}
	r, rest := next(b)
	return r, rest, true
}

// mapping is a file in memory. It is unmapped when nothing reaches it any more.
type mapping struct{ data []byte }

// Map maps a file that is never written to again. The bytes are there for as long as owner is reachable.
func Map(name string) (data []byte, owner any, err error) {
	m, err := mapFile(name)
	if err != nil {
		return nil, nil, err
	}
	return m.data, m, nil
}

func mapFile(name string) (*mapping, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	m := &mapping{}
	if st.Size() == 0 {
		return m, nil
	}
	if m.data, err = syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	runtime.AddCleanup(m, func(data []byte) {
		_ = syscall.Munmap(data) // fails only for addresses that Mmap did not return
	}, m.data)
	return m, nil
}

// readBase maps and checks a file of items.
func readBase(name string) (h head, s segment, err error) {
	m, err := mapFile(name)
	if err != nil {
		return h, s, err
	}
	h, s, err = parseItems(m.data)
	s.owner = m
	return h, s, err
}

// isPlain tells the two formats of items apart; ok is false of anything else.
func isPlain(magic string) (plain, ok bool) {
	return magic == plainMagic, magic == plainMagic || magic == itemsMagic
}

func parseItems(data []byte) (h head, s segment, err error) {
	bad := func(format string, args ...any) (head, segment, error) {
		return h, segment{}, fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
	}
	const fixed = len(itemsMagic) + headSize + 16
	if len(data) < fixed+8 {
		return bad("it does not begin like a file of items")
	}
	plain, ok := isPlain(string(data[:len(itemsMagic)]))
	if !ok {
		return bad("it does not begin like a file of items")
	}
	body := data[:len(data)-8]
	if binary.LittleEndian.Uint64(data[len(body):]) != uint64(crc32.Checksum(body, castagnoli)) {
		return bad("its checksum is wrong")
	}
	if h, err = decodeHead(data[len(itemsMagic):]); err != nil {
		return h, s, err
	}
	n, size := binary.LittleEndian.Uint64(body[fixed-16:]), binary.LittleEndian.Uint64(body[fixed-8:])
	// Each number is bounded before it is used in a sum: a file may say anything.
	room, total := uint64(len(body)-fixed), uint64(h.items)
	if !plain {
		total += uint64(h.bare)
	}
	if n > maxSlots || size > room || h.items < 0 || h.bare < 0 || total != n {
		return bad("its length does not fit its %d items", n)
	}
	marks := (n + markEvery - 1) / markEvery
	if room != 8*marks+size {
		return bad("its length does not fit its %d items", n)
	}
	s = segment{marks: make([]uint64, marks), blob: body[fixed+8*int(marks):], n: int(n), plain: plain}
	for i := range s.marks {
		s.marks[i] = binary.LittleEndian.Uint64(body[fixed+8*i:])
	}
	if err := s.check(); err != nil {
		return bad("%v", err)
	}
	if got := s.digest(); got != h.digest {
		return bad("digest %v, want %v", got, h.digest)
	}
	return h, s, nil
}

// check refuses records that could not be walked.
func (s *segment) check() error {
	at := s.blob
	for i := range s.n {
		if i%markEvery == 0 && s.marks[i/markEvery] != uint64(len(s.blob)-len(at)) {
			return fmt.Errorf("record %d is not where it should be", i)
		}
		var ok bool
		if _, at, ok = checkedNext(at); !ok {
			return fmt.Errorf("record %d is malformed", i)
		}
	}
	if len(at) != 0 {
		return fmt.Errorf("%d bytes after the last record", len(at))
	}
	return nil
}

// WriteFile makes a file whole or not at all: after a crash at any moment the name has the old contents or
// the new ones.
func WriteFile(name string, write func(io.Writer) error) error {
	if err := durable.WriteFile(name, write); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// close ends the log.
func (g *Generation) close() error {
	if g.log == nil {
		return nil
	}
	err := g.log.Close()
	g.log = nil
	return err
}

// retire lets go of what can be loaded again.
func (g *Generation) retire() {
	if g.dir != "" && !g.failed {
		g.table, g.ops, g.alive = nil, nil, nil
	}
}

// remove deletes the generation's files, durably: they name items that were deleted.
func (g *Generation) remove() error {
	if g.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(g.dir)
	for _, e := range entries {
		if n, ok := generationOf(e.Name()); ok && n == g.begun.number {
			err = errors.Join(err, durable.Unlink(filepath.Join(g.dir, e.Name())))
		}
	}
	return errors.Join(err, durable.SyncDir(g.dir))
}

// generationOf returns the generation that a file belongs to, whole or not.
func generationOf(name string) (number uint64, ok bool) {
	name = strings.TrimSuffix(name, ".part")
	at := strings.LastIndexByte(name, '-')
	if at < 0 || len(name)-at-1 != numberDigits {
		return 0, false
	}
	number, err := strconv.ParseUint(name[at+1:], 10, 64)
	return number, err == nil
}

package pebbleopen

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// salvage copies every version of every key that can be read to a database, sorted by key and sequence number.
type salvage struct {
	disk  vfs.FS
	dir   string
	to    *DB
	batch *pebble.Batch
	buf   []byte
	loss  *Loss
}

const batchBytes = 4 << 20

func (s *salvage) lost(format string, args ...any) {
	s.loss.Lost = append(s.loss.Lost, fmt.Sprintf(format, args...))
}

func (s *salvage) flush() error {
	err := s.batch.Commit(pebble.NoSync)
	s.batch = s.to.NewBatch()
	return err
}

// add takes one version of a key.
func (s *salvage) add(kind pebble.InternalKeyKind, key []byte, seq uint64, value []byte) error {
	s.buf = binary.BigEndian.AppendUint64(escape(s.buf[:0], key), seq)
	n := len(s.buf)
	s.buf = append(append(s.buf, byte(kind)), value...)
	if err := s.batch.Set(s.buf[:n], s.buf[n:], nil); err != nil {
		return err
	}
	if s.batch.Len() < batchBytes {
		return nil
	}
	return s.flush()
}

// escape appends a key such that what is appended to it does not change the order of keys.
func escape(dst, key []byte) []byte {
	for _, c := range key {
		if dst = append(dst, c); c == 0 {
			dst = append(dst, 0xFF)
		}
	}
	return append(dst, 0, 1)
}

// unescape returns the key of an escaped one that a sequence number follows.
func unescape(b []byte) ([]byte, error) {
	key := make([]byte, 0, len(b))
	for b = b[:max(0, len(b)-8)]; len(b) > 1; b = b[1:] {
		if b[0] == 0 && b[1] == 1 {
			return key, nil
		}
		if key = append(key, b[0]); b[0] == 0 {
			b = b[1:]
		}
	}
	return nil, errors.New("a key without an end")
}

// read takes the tables, those of live where that is known, and all logs.
func (s *salvage) read(live map[string]bool) error {
	names, err := s.disk.List(s.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		switch {
		case isTable(name) && (live == nil || live[name]):
			err = s.table(name)
		case isLog(name):
			err = s.log(name)
		}
		if err != nil {
			return err
		}
	}
	for name := range live {
		if !slices.Contains(names, name) {
			s.lost("%s is missing, with the entries that it held", name)
		}
	}
	l, err := readLedger(s.dir, s.disk)
	if err != nil {
		return nil
	}
	for name, e := range l.files {
		if isLog(name) && !slices.Contains(names, name) {
			s.lost("%s is missing, with %d bytes of the last changes", name, e.length)
		}
	}
	return nil
}

// table takes all entries of a table that can be read: those before the first damaged block and those after the last.
func (s *salvage) table(name string) error {
	f, err := s.disk.Open(s.disk.PathJoin(s.dir, name))
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	table, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		s.lost("%s cannot be read, with the entries that it held: %v", name, err)
		return nil // the reader has closed it
	}
	defer table.Close()
	it, err := table.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		s.lost("%s cannot be read, with the entries that it held: %v", name, err)
		return nil
	}
	defer it.Close()
	var last []byte
	var damage error
	for kv := it.First(); ; kv = it.Next() {
		if kv == nil {
			damage = it.Error()
			break
		}
		v, _, err := kv.Value(nil)
		if err != nil {
			damage = err
			break
		}
		last = append(last[:0], kv.K.UserKey...)
		if err := s.add(kv.Kind(), kv.K.UserKey, uint64(kv.SeqNum()), v); err != nil {
			return err
		}
	}
	if damage == nil {
		return nil
	}
	s.lost("%s has damaged blocks, with the entries in them: %v", name, damage)
	for kv := it.Last(); kv != nil && bytes.Compare(kv.K.UserKey, last) > 0; kv = it.Prev() {
		v, _, err := kv.Value(nil)
		if err != nil {
			break
		}
		if err := s.add(kv.Kind(), kv.K.UserKey, uint64(kv.SeqNum()), v); err != nil {
			return err
		}
	}
	return nil
}

// log takes all batches of a log that can be read, also those behind damaged ones.
func (s *salvage) log(name string) error {
	f, err := s.disk.Open(s.disk.PathJoin(s.dir, name))
	if err != nil {
		return err
	}
	data, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	number, err := strconv.ParseUint(strings.TrimSuffix(name, ".log"), 10, 64)
	if err != nil {
		return err
	}
	synced := uint64(len(data))
	if l, err := readLedger(s.dir, s.disk); err == nil && l.files[name].length > 0 {
		synced = l.files[name].length
	}
	c := chunks{data: data, log: uint32(number), synced: synced}
	for record := range c.records {
		if err := s.changes(record); err != nil {
			return err
		}
	}
	if uint64(len(data)) < synced {
		s.lost("%s lacks its last %d bytes, with the changes in them", name, synced-uint64(len(data)))
	}
	if c.damaged > 0 {
		s.lost("%s has %d damaged places, with the changes in them", name, c.damaged)
	}
	return nil
}

// changes takes a batch.
func (s *salvage) changes(record []byte) error {
	header, ok := batchrepr.ReadHeader(record)
	if !ok {
		return nil
	}
	seq := uint64(header.SeqNum)
	for r := batchrepr.Read(record); ; {
		kind, key, value, ok, err := r.Next()
		if !ok || err != nil {
			return nil
		}
		if kind == pebble.InternalKeyKindLogData {
			continue
		}
		if err := s.add(kind, key, seq, value); err != nil {
			return err
		}
		seq++
	}
}

// chunks are those of a log. Pebble's own reader stops at the first that is damaged.
type chunks struct {
	data    []byte
	log     uint32
	synced  uint64 // bytes that should be whole
	damaged int
}

const blockBytes = 32 << 10

// records yields the log's records that are whole.
func (c *chunks) records(yield func([]byte) bool) {
	var record []byte
	open := false // the first chunks of a record were read
	for block := 0; block < len(c.data); block += blockBytes {
		b := c.data[block:min(block+blockBytes, len(c.data))]
		for at := 0; at+7 <= len(b); {
			next, payload, place := c.chunk(b, at)
			switch place {
			case nothing:
			case damaged:
				if uint64(block+at) < c.synced {
					c.damaged++
				}
				open, next = false, c.resume(b, at+1)
			default:
				if place == full || place == first {
					record, open = record[:0], true
				}
				if record = append(record, payload...); open && (place == full || place == last) {
					if open = false; !yield(record) {
						return
					}
				}
			}
			at = next
		}
	}
}

// resume returns where the next whole chunk of a block begins, or the block's end.
func (c *chunks) resume(b []byte, at int) int {
	for ; at+7 <= len(b); at++ {
		if _, _, p := c.chunk(b, at); p != nothing && p != damaged {
			return at
		}
	}
	return len(b)
}

// place says where in its record a chunk is.
type place uint8

const (
	nothing place = iota
	full
	first
	middle
	last
	damaged
)

// chunk reads the chunk at an offset of a block, and returns where the next one begins.
func (c *chunks) chunk(b []byte, at int) (next int, payload []byte, p place) {
	sum, n, kind := binary.LittleEndian.Uint32(b[at:]), int(binary.LittleEndian.Uint16(b[at+4:])), int(b[at+6])
	if sum == 0 && n == 0 && kind == 0 { // nothing was written from here on
		return len(b), nil, nothing
	}
	head := 7
	switch {
	case kind == 0 || kind > 12:
		return len(b), nil, damaged
	case kind > 8:
		head = 19
	case kind > 4:
		head = 11
	}
	if at+head > len(b) {
		return len(b), nil, damaged
	}
	if head > 7 {
		switch log := binary.LittleEndian.Uint32(b[at+7:]); {
		case log == c.log+1 && n == 0: // the log's end
			return len(b), nil, nothing
		case log != c.log: // what another log left here, unless it should be whole
			return len(b), nil, damaged
		}
	}
	end := at + head + n
	if end > len(b) {
		return len(b), nil, damaged
	}
	crc := crc32.Checksum(b[at+6:end], castagnoli)
	if (crc>>15|crc<<17)+0xa282ead8 != sum {
		return end, nil, damaged
	}
	return end, b[at+head : end], place((kind-1)%4) + full
}

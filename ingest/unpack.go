package ingest

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"grebe/internal/cli"
)

// Formats of a source.
const (
	formatNDJSON  = "ndjson"
	formatCSV     = "csv"
	formatTSV     = "tsv"
	formatParquet = "parquet"
)

// formatOf returns the format and the compression that a file's name tells. Files with another ending are NDJSON.
func formatOf(name string) (format, packing string) {
	name = strings.ToLower(name)
	for _, ext := range []string{".gz", ".zst"} {
		if cut, ok := strings.CutSuffix(name, ext); ok {
			name, packing = cut, ext
		}
	}
	switch filepath.Ext(name) {
	case ".csv":
		return formatCSV, packing
	case ".tsv", ".tab":
		return formatTSV, packing
	case ".parquet", ".pq":
		return formatParquet, packing
	}
	return formatNDJSON, packing
}

// errCutOff is the error of compressed data without an end.
var errCutOff = errors.New("the compressed data ends too early: the file was cut off, or is still being written. " +
	"Copy or export it again")

// stream is the content of a file, decompressed.
type stream struct {
	file   *os.File
	unpack io.Reader
	stop   func()
	bytes  atomic.Int64 // of the file that were read
}

// openStream opens a file. The caller MUST close the stream.
func openStream(path, packing string) (*stream, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &stream{file: f, stop: func() {}}
	in := readerFunc(func(p []byte) (int, error) {
		n, err := f.Read(p)
		s.bytes.Add(int64(n))
		return n, err
	})
	switch packing {
	case ".gz":
		s.unpack, err = gzip.NewReader(in)
	case ".zst":
		var z *zstd.Decoder
		// One goroutine, and the memory of the largest window that zstd's own program accepts.
		if z, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20)); err == nil {
			s.unpack, s.stop = z, z.Close
		}
	default:
		s.unpack = in
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, unpackError(packing, err)), f.Close())
	}
	if packing != "" {
		packed := s.unpack
		s.unpack = readerFunc(func(p []byte) (int, error) {
			n, err := packed.Read(p)
			return n, unpackError(packing, err)
		})
	}
	return s, nil
}

// unpackError explains an error of a decompressor.
func unpackError(packing string, err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return errCutOff
	}
	return fmt.Errorf("cannot decompress (%s): %w: the file is damaged: copy or export it again",
		strings.TrimPrefix(packing, "."), err)
}

func (s *stream) Read(p []byte) (int, error) { return s.unpack.Read(p) }

func (s *stream) close() error {
	s.stop()
	return s.file.Close()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// spool copies a stream to a temporary file, which cannot be read twice otherwise. The caller MUST remove the file.
func spool(r io.Reader) (path string, err error) {
	f, err := os.CreateTemp("", "grebe-import-*")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// separatorOf returns the separator of a format, or the one that a flag gives.
func separatorOf(format, flag string) (byte, error) {
	switch {
	case flag == "" && format == formatTSV, flag == `\t`:
		return '\t', nil
	case flag == "":
		return ',', nil
	case len(flag) == 1 && flag[0] < 0x80 && !strings.ContainsAny(flag, "\"\r\n"):
		return flag[0], nil
	}
	return 0, cli.Usagef("--separator %q: want one ASCII character, such as , or ; or \\t", flag)
}

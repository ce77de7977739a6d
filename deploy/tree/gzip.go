package tree

import (
	"bytes"
	"compress/gzip"
)

// Gzip returns data compressed, without a name and a time.
func Gzip(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.Bytes(), err
}

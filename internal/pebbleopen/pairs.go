package pebbleopen

import "encoding/binary"

// AppendPair appends a key and its value, each behind its length.
func AppendPair(b, key, value []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

// TakePair returns the pair that b begins with, and the rest. ok is false if b does not begin with a whole pair.
func TakePair(b []byte) (key, value, rest []byte, ok bool) {
	if key, b, ok = takeBytes(b); ok {
		value, b, ok = takeBytes(b)
	}
	return key, value, b, ok
}

func takeBytes(b []byte) (s, rest []byte, ok bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	b = b[k:]
	return b[:n:n], b[n:], true
}

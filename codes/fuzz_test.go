package codes

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// A file with any content and a right checksum is refused, or read and written as it was.
func FuzzRead(f *testing.F) {
	var file bytes.Buffer
	if err := saved().Write(&file); err != nil {
		f.Fatal(err)
	}
	f.Add(file.Bytes()[len(magic) : file.Len()-4])
	f.Fuzz(func(t *testing.T, body []byte) {
		data := append([]byte(magic), body...)
		data = binary.LittleEndian.AppendUint32(data, crc32.Checksum(data, castagnoli))
		s, err := Read(data)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := s.Write(&again); err != nil || !bytes.Equal(again.Bytes(), data) {
			t.Fatalf("written again it is another file (%v)", err)
		}
	})
}

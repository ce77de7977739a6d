package disk

import (
	"testing"

	"grebe/plan"
)

// FuzzOpen opens a folder whose segment holds any bytes: nothing panics, what is found can be read, the books are
// right, and the store can be written.
func FuzzOpen(f *testing.F) {
	d, _ := small(&testing.T{}, true)
	var whole []byte
	for _, file := range d.files {
		whole = file.Data
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		d := newMemFolder(t, true)
		file, err := d.Create(segmentName(1))
		if err == nil {
			_, err = file.WriteAt(data, 0)
		}
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		s := mustOpen(t, d, Options{Budget: mib})
		var keys []plan.Key
		s.Range(func(key plan.Key, _ []byte, _ int64) bool {
			keys = append(keys, key)
			return true
		})
		for _, k := range keys {
			fetch(t, s, k)
		}
		mustPut(t, s, keyOf(77), nil, pattern(keyOf(77), 'p', 0, 3000))
		if _, p, ok := fetch(t, s, keyOf(77)); !ok || len(p) != 3000 {
			t.Fatal("what was put is not there")
		}
		books(t, s)
	})
}

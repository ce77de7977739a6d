package computetest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"math"
	"reflect"
	"sync"
)

// recalled has what ref answered, by the digest of all that it was asked. The levels of a device are compared with the
// same answers, and ref computes in float64: half of a suite's time went there.
var recalled sync.Map

// recall returns what compute returns, or what it returned before for equal questions. Answers MUST NOT be changed.
func recall[T any](compute func() (T, error), questions ...any) (T, error) {
	h := sha256.New()
	for _, q := range questions {
		digest(h, reflect.ValueOf(q))
	}
	key := fmt.Sprintf("%T %x", *new(T), h.Sum(nil))
	if had, ok := recalled.Load(key); ok {
		return had.(T), nil
	}
	out, err := compute()
	if err == nil {
		recalled.Store(key, out)
	}
	return out, err
}

// digest writes a value and all that it points to.
func digest(h hash.Hash, v reflect.Value) {
	number := func(n uint64) {
		var b [9]byte
		b[0] = byte(v.Kind())
		binary.LittleEndian.PutUint64(b[1:], n)
		h.Write(b[:])
	}
	switch v.Kind() {
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		number(n)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		number(v.Uint())
	case reflect.Float32, reflect.Float64:
		number(math.Float64bits(v.Float()))
	case reflect.Pointer:
		if v.IsNil() {
			number(0)
			return
		}
		number(1)
		digest(h, v.Elem())
	case reflect.Slice:
		if v.IsNil() {
			number(math.MaxUint64) // nil steps keep all rows, empty ones none
			return
		}
		number(uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			h.Write(v.Bytes())
			return
		}
		for i := range v.Len() {
			digest(h, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			digest(h, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			digest(h, v.Field(i))
		}
	default:
		panic(fmt.Sprintf("computetest: no digest of a %v", v.Type()))
	}
}

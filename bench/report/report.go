// Package report writes what benchmarks found for programs. A number that is not finite, such as a ratio to a time of
// 0, is null there: JSON has no such numbers, and encoding/json would lose a report of hours for one of them.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
)

// JSON writes a report, indented.
func JSON(w io.Writer, report any) error {
	data, err := json.MarshalIndent(report, "", "  ")
	var unsupported *json.UnsupportedValueError
	if errors.As(err, &unsupported) {
		data, err = withNulls(report)
	}
	if err != nil {
		return fmt.Errorf("write the report as JSON: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// The largest numbers stand for those that are not finite until they are written.
var standIns = []any{float32(math.MaxFloat32), math.MaxFloat64}

func withNulls(report any) ([]byte, error) {
	data, err := json.MarshalIndent(finite(reflect.ValueOf(report)).Interface(), "", "  ")
	if err != nil {
		return nil, err
	}
	for _, f := range standIns {
		number, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		data = bytes.ReplaceAll(data, append([]byte("-"), number...), number)
		data = bytes.ReplaceAll(data, number, []byte("null"))
	}
	return data, nil
}

// finite returns a copy of v in which stand-ins are in the place of numbers that are not finite. Fields that are not
// exported, and not written, are as they were.
func finite(v reflect.Value) reflect.Value {
	if !v.IsValid() {
		return v
	}
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			out.SetFloat(map[reflect.Kind]float64{reflect.Float32: math.MaxFloat32, reflect.Float64: math.MaxFloat64}[v.Kind()])
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(finite(v.Elem()))
		}
	case reflect.Interface:
		if !v.IsNil() {
			out.Set(finite(v.Elem()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(finite(v.Field(i)))
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		}
		for i := range v.Len() {
			out.Index(i).Set(finite(v.Index(i)))
		}
	case reflect.Map:
		if v.IsNil() {
			break
		}
		out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
		for _, key := range v.MapKeys() {
			out.SetMapIndex(key, finite(v.MapIndex(key)))
		}
	}
	return out
}

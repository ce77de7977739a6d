package ingest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
)

// eventOp appends an event to a user. An event without an id gets one made of its content, so that importing it again
// changes nothing.
func eventOp(user string, e *grebev1.Event) (catalog.Op, error) {
	switch {
	case user == "":
		return catalog.Op{}, errors.New("user: is missing")
	case e.Item == "":
		return catalog.Op{}, errors.New("item: is missing")
	case e.Id == "" && e.Time == 0:
		return catalog.Op{}, errors.New("an event needs an id or a time: without both, importing it again would add it again")
	case e.Id == "":
		e.Id = contentID(e)
	}
	return catalog.Op{AppendEvents: &grebev1.AppendEventsRequest{Id: user, Events: []*grebev1.Event{e}}}, nil
}

// contentID returns an id that equal events of a user share.
func contentID(e *grebev1.Event) string {
	b := binary.AppendUvarint(nil, uint64(len(e.Item)))
	b = append(b, e.Item...)
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time))
	b = binary.BigEndian.AppendUint32(b, uint32(e.Action))
	if len(e.Features) > 0 {
		for _, name := range slices.Sorted(maps.Keys(e.Features)) {
			b = binary.AppendUvarint(b, uint64(len(name)))
			b = append(b, name...)
			b = binary.BigEndian.AppendUint64(b, math.Float64bits(e.Features[name]))
		}
	}
	sum := sha256.Sum256(b)
	return "content-" + hex.EncodeToString(sum[:12])
}

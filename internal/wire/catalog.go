package wire

import grebev1 "grebe/api/grebe/v1"

// DecodeItemLine reads a line of /v1/items:batch: an item, or {"delete": "id"}, of which it returns
// the id.
func DecodeItemLine(in []byte) (*grebev1.Item, string, error) {
	m, deletes, id := &grebev1.Item{}, false, ""
	err := decode(in, false, func(d *decoder) {
		if id, deletes = d.deletion(); !deletes {
			d.item(m)
		}
	})
	if err != nil || deletes {
		m = nil
	}
	return m, id, err
}

// DecodeUserLine reads a line of /v1/users:batch, as DecodeItemLine does.
func DecodeUserLine(in []byte) (*grebev1.User, string, error) {
	m, deletes, id := &grebev1.User{}, false, ""
	err := decode(in, false, func(d *decoder) {
		if id, deletes = d.deletion(); !deletes {
			d.user(m)
		}
	})
	if err != nil || deletes {
		m = nil
	}
	return m, id, err
}

// deletion reads an object whose first key is "delete". When there is none, nothing is read.
func (d *decoder) deletion() (id string, ok bool) {
	start := d.pos
	if !d.take('{') || d.peek() != '"' || d.string() != "delete" || d.err != nil {
		d.pos, d.err = start, nil
		return "", false
	}
	d.pos = start
	d.object(func(key string) {
		if key != "delete" {
			d.unknown()
			return
		}
		if id = d.string(); d.err == nil && id == "" {
			d.fail("is empty")
		}
	})
	return id, true
}

// DecodeAppendEvents reads a request of /v1/users/{id}/events; the id is not part of it.
func DecodeAppendEvents(in []byte) (*grebev1.AppendEventsRequest, error) {
	m := &grebev1.AppendEventsRequest{}
	err := decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			if key != "events" {
				d.unknown()
				return
			}
			m.Events = d.events()
		})
	})
	return m, err
}

// DecodeEventLine reads a line of /v1/events:batch: an event with the id of its user.
func DecodeEventLine(in []byte) (user string, e *grebev1.Event, err error) {
	e = &grebev1.Event{}
	err = decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			if key != "user" {
				d.eventField(e, key)
				return
			}
			user = d.string()
		})
		for _, f := range []step{{key: "user"}, {key: "item"}} {
			if d.err == nil && (f.key == "user" && user == "" || f.key == "item" && e.Item == "") {
				d.path = append(d.path, f)
				d.fail("is missing")
			}
		}
	})
	return user, e, err
}

// EncodeEventLine is the inverse of DecodeEventLine.
func EncodeEventLine(user string, e *grebev1.Event) []byte {
	return encode(func(w *writer) {
		w.string("user", user)
		w.event(e)
	})
}

// events reads a list of events; an empty one is not nil.
func (d *decoder) events() []*grebev1.Event {
	out := []*grebev1.Event{}
	d.list(MaxHistory, func() {
		e := &grebev1.Event{}
		d.event(e)
		out = append(out, e)
	})
	return out
}

// EncodeAppendEvents writes a response of /v1/users/{id}/events.
func EncodeAppendEvents(m *grebev1.AppendEventsResponse) []byte {
	return encode(func(w *writer) {
		w.string("id", m.Id)
		w.bool("created", m.Created)
		w.int("appended", int64(m.Appended))
		w.int("dropped", int64(m.Dropped))
		w.int("events", int64(m.Events))
		w.int("history", int64(m.History))
		w.string("version", m.Version)
		if m.Duplicates > 0 {
			w.int("duplicates", int64(m.Duplicates))
		}
		if m.UnknownItems > 0 {
			w.int("unknown_items", int64(m.UnknownItems))
			w.strings("unknown", m.Unknown)
		}
	})
}

// EncodeBatch writes a response of /v1/items:batch, /v1/users:batch and /v1/events:batch.
func EncodeBatch(m *grebev1.BatchResponse) []byte {
	return encode(func(w *writer) {
		w.int("lines", m.Lines)
		w.int("created", m.Created)
		w.int("replaced", m.Replaced)
		w.int("deleted", m.Deleted)
		w.int("unchanged", m.Unchanged)
		w.int("failed", m.Failed)
		w.list("errors", len(m.Errors), func(i int) {
			e := m.Errors[i]
			w.nested('{', '}', func() {
				w.int("line", e.Line)
				w.string("code", e.Code)
				w.string("message", e.Message)
				if e.Field != "" {
					w.string("field", e.Field)
				}
			})
		})
		w.string("version", m.Version)
		if len(m.Warnings) > 0 {
			w.strings("warnings", m.Warnings)
		}
	})
}

// EncodeCatalog writes a response of /v1/catalog.
func EncodeCatalog(m *grebev1.CatalogResponse) []byte {
	return encode(func(w *writer) {
		w.int("items", m.Items)
		w.int("users", m.Users)
		w.string("version", m.Version)
		w.string("digest", m.Digest)
		w.int("memory_bytes", m.MemoryBytes)
		w.bool("durable", m.Durable)
		w.string("id", m.Id)
		if len(m.Models) == 0 {
			return
		}
		w.list("models", len(m.Models), func(i int) {
			w.nested('{', '}', func() { w.snapshot(m.Models[i]) })
		})
		w.list("versions", len(m.Versions), func(i int) {
			w.nested('{', '}', func() { w.catalogVersion(m.Versions[i]) })
		})
	})
}

func (w *writer) catalogVersion(m *grebev1.CatalogVersion) {
	w.string("version", m.Version)
	w.string("digest", m.Digest)
	w.int("items", m.Items)
	w.float("age_seconds", m.AgeSeconds)
	w.strings("models", m.Models)
}

// DecodeActivateCatalog reads a request of /v1/catalog:activate.
func DecodeActivateCatalog(in []byte) (*grebev1.ActivateCatalogRequest, error) {
	m := &grebev1.ActivateCatalogRequest{}
	err := decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "version":
				m.Version = d.string()
			case "digest":
				m.Digest = d.string()
			case "model":
				m.Model = d.string()
			default:
				d.unknown()
			}
		})
	})
	return m, err
}

// DecodeRollbackCatalog reads a request of /v1/catalog:rollback; an empty one will do.
func DecodeRollbackCatalog(in []byte) (*grebev1.RollbackCatalogRequest, error) {
	m := &grebev1.RollbackCatalogRequest{}
	if len(in) == 0 {
		return m, nil
	}
	err := decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			if key != "model" {
				d.unknown()
				return
			}
			m.Model = d.string()
		})
	})
	return m, err
}

func (w *writer) snapshot(m *grebev1.Snapshot) {
	w.string("model", m.Model)
	w.string("version", m.Version)
	w.string("digest", m.Digest)
	w.int("items", m.Items)
	w.int("skipped", m.Skipped)
	w.float("age_seconds", m.AgeSeconds)
	w.bool("pinned", m.Pinned)
	w.int("unusable", m.Unusable)
	if len(m.Examples) > 0 {
		w.strings("examples", m.Examples)
	}
}

func (w *writer) bool(name string, v bool) {
	w.key(name)
	if v {
		w.buf = append(w.buf, "true"...)
		return
	}
	w.buf = append(w.buf, "false"...)
}

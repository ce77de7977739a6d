package wire

import grebev1 "grebe/api/grebe/v1"

// EncodeModels writes a response of /v1/models.
func EncodeModels(m *grebev1.ListModelsResponse) []byte {
	return encode(func(w *writer) {
		w.string("object", m.Object)
		w.list("data", len(m.Data), func(i int) {
			w.nested('{', '}', func() { w.model(m.Data[i]) })
		})
	})
}

// EncodeModel writes a response of /v1/models/{name}, and of its reload and rollback.
func EncodeModel(m *grebev1.Model) []byte { return encode(func(w *writer) { w.model(m) }) }

func (w *writer) model(m *grebev1.Model) {
	w.string("id", m.Id)
	w.string("object", m.Object)
	w.int("created", m.Created)
	w.string("owned_by", m.OwnedBy)
	w.string("architecture", m.Architecture)
	w.string("dtype", m.Dtype)
	w.string("scoring", m.Scoring)
	w.int("vocab_size", int64(m.VocabSize))
	w.int("max_model_len", int64(m.MaxModelLen))
	if m.Version != "" {
		w.string("version", m.Version)
	}
	r := m.Reload
	if r == nil {
		return
	}
	w.object("reload", func() {
		w.string("state", r.State)
		w.string("from", r.From)
		if r.To != "" {
			w.string("to", r.To)
		}
		w.float("progress", r.Progress)
		w.int("warmed_items", r.WarmedItems)
		if r.Error != "" {
			w.string("error", r.Error)
		}
		w.float("seconds", r.Seconds)
	})
}

// DecodeReloadModel reads a request of /v1/models/{name}:reload; an empty one will do. The name is not part of it.
func DecodeReloadModel(in []byte) (*grebev1.ReloadModelRequest, error) {
	wait, err := decodeWait(in)
	return &grebev1.ReloadModelRequest{Wait: wait}, err
}

// DecodeRollbackModel reads a request of /v1/models/{name}:rollback, as DecodeReloadModel does.
func DecodeRollbackModel(in []byte) (*grebev1.RollbackModelRequest, error) {
	wait, err := decodeWait(in)
	return &grebev1.RollbackModelRequest{Wait: wait}, err
}

func decodeWait(in []byte) (wait bool, err error) {
	if len(in) == 0 {
		return false, nil
	}
	err = decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			if key != "wait" {
				d.unknown()
				return
			}
			wait = d.bool()
		})
	})
	return wait, err
}

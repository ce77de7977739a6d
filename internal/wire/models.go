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
	if m.Reload != nil {
		w.object("reload", func() { w.reload(m.Reload) })
	}
	if m.Rollout != nil {
		w.object("rollout", func() { w.rollout(m.Rollout) })
	}
}

func (w *writer) reload(r *grebev1.Reload) {
	w.string("state", r.State)
	w.string("from", r.From)
	w.some("to", r.To)
	w.float("progress", r.Progress)
	w.int("warmed_items", r.WarmedItems)
	w.some("error", r.Error)
	w.float("seconds", r.Seconds)
}

func (w *writer) rollout(r *grebev1.Rollout) {
	w.string("state", r.State)
	w.string("driver", r.Driver)
	if r.Back {
		w.bool("back", true)
	}
	w.some("to", r.To)
	w.some("error", r.Error)
	w.list("nodes", len(r.Nodes), func(i int) {
		n := r.Nodes[i]
		w.nested('{', '}', func() {
			w.string("id", n.Id)
			w.string("state", n.State)
			w.some("version", n.Version)
			if n.Step != "" {
				w.string("step", n.Step)
				w.float("progress", n.Progress)
			}
			w.some("error", n.Error)
		})
	})
}

// some writes a text that is not empty.
func (w *writer) some(name, s string) {
	if s != "" {
		w.string(name, s)
	}
}

// DecodeReloadModel reads a request of /v1/models/{name}:reload; an empty one will do. The name is not part of it.
func DecodeReloadModel(in []byte) (*grebev1.ReloadModelRequest, error) {
	wait, scope, err := decodeChange(in)
	return &grebev1.ReloadModelRequest{Wait: wait, Scope: scope}, err
}

// DecodeRollbackModel reads a request of /v1/models/{name}:rollback, as DecodeReloadModel does.
func DecodeRollbackModel(in []byte) (*grebev1.RollbackModelRequest, error) {
	wait, scope, err := decodeChange(in)
	return &grebev1.RollbackModelRequest{Wait: wait, Scope: scope}, err
}

func decodeChange(in []byte) (wait bool, scope string, err error) {
	if len(in) == 0 {
		return false, "", nil
	}
	err = decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "wait":
				wait = d.bool()
			case "scope":
				scope = d.string()
			default:
				d.unknown()
			}
		})
	})
	return wait, scope, err
}

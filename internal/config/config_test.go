package config

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// full has every key of the documented configuration file.
const full = `listen: 127.0.0.1:8080
admin_listen: 127.0.0.1:8081
grpc_listen: ""
device: auto                 # auto | cpu | cuda
data_dir: ./grebe-data
models:
  - name: demo
    path: ./checkpoint
    dtype: auto
    prompt:
      preamble: ""
      user: "{text}"
      history: text
      separator: "\n"
      item: "{text}"
      lead_in: ""
      instruction: {tokens: [5, 6, 7]}
      generate_instruction: {tokens: [8, 9]}
    scoring: {kind: identifier}
    codes: {first_token: [100, 140, 180], size: [40, 40, 40], beam_widths: [64, 128]}
    device_memory: 80%
    kv_dtype: fp8
  - path: /models/second
    scoring: {kind: pointwise, "yes": "yes", no: 17}
    codes: {pattern: ["<a_%d>", "<b_%d>"]}
slo_ms: 200
schedule: {policy: predicted}
cache: {policy: default, host_memory: 4GiB, disk: 0}
workers: 1
catalog: {items: items.ndjson, users: users.ndjson}
`

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "grebe.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestLoadReadsEveryDocumentedKey(t *testing.T) {
	name := write(t, full)
	l, err := Load(Source{File: name})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(name)
	m, second := l.Models[0], l.Models[1]
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"path", m.Path, filepath.Join(dir, "checkpoint")},
		{"instruction", m.Prompt.Instruction, Text{Tokens: []int32{5, 6, 7}}},
		{"first tokens", m.Codes.FirstToken, []int32{100, 140, 180}},
		{"beam widths", m.Codes.BeamWidths, []int{64, 128}},
		{"device memory", m.DeviceMemory, Size{Percent: 80}},
		{"second name", second.Name, "second"},
		{"second separator (default)", second.Prompt.Separator, "\n"},
		{"yes", second.Scoring.Yes, Token{Text: "yes"}},
		{"no", second.Scoring.No, Token{ID: 17, ByID: true}},
		{"cache", l.Cache.HostMemory.Of(0), int64(4 << 30)},
		{"catalog", l.Catalog.Items, filepath.Join(dir, "items.ndjson")},
		{"grpc off", l.GRPCListen, ""},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s is %v, want %v", c.what, c.got, c.want)
		}
	}
}

func TestLoadNamesThePlaceOfEachProblem(t *testing.T) {
	const model = "models: [{path: x}]\n"
	for _, c := range []struct{ name, text, want string }{
		{"unknown key", model + "lisen: 127.0.0.1:1\n", ":2: lisen: unknown key: did you mean listen?"},
		{"unknown key inside", "models:\n  - path: x\n    promt: {}\n",
			":3: models[0].promt: unknown key: did you mean prompt?"},
		{"wrong type", model + "\nworkers: many\n", ":3: workers: want a whole number, got \"many\""},
		{"number for text", model + "device: 3\n", ":2: device: want a text, got the number 3: put it in quotes"},
		{"list for mapping", model + "cache: [1]\n", ":2: cache: want keys and values, got a list"},
		{"given twice", model + "slo_ms: 1\nslo_ms: 2\n", ":3: slo_ms: given twice"},
		{"bad choice", model + "device: gpu\n", ":2: device: \"gpu\": want one of auto, cpu, cuda, none"},
		{"bad size", model + "cache: {host_memory: lots}\n", ":2: cache.host_memory: \"lots\" is not a size"},
		{"bad address", model + "listen: here\n", ":2: listen: \"here\" is not an address"},
		{"same address", model + "listen: \":1\"\nadmin_listen: \":1\"\n",
			":3: admin_listen: :1 is the address of listen already"},
		{"no path", "models:\n  - name: a\n", ":2: models[0].path: is missing"},
		{"same name", "models:\n  - {name: a, path: x}\n  - {name: a, path: y}\n",
			":3: models[1].name: \"a\" is the name of models[0] already"},
		{"no model", "slo_ms: 5\n", "models: no model"},
		{"contradicting codes", "models:\n  - path: x\n    codes: {pattern: [\"<%d>\"], size: [1], first_token: [2]}\n",
			":3: models[0].codes: give either"},
		{"beams of no level", "models:\n  - path: x\n    codes: {first_token: [2], size: [1], beam_widths: [8, 9]}\n",
			":3: models[0].codes.beam_widths: 9 at 1"},
		{"no drift", "models:\n  - path: x\n    blend: {drift_limit: 0}\n",
			":3: models[0].blend.drift_limit: 0: want more than 0"},
		{"codes without codes", "models:\n  - path: x\n    prompt: {history: codes}\n",
			":3: models[0].prompt.history: codes, but the model has no codes"},
		{"no such order", "models:\n  - path: x\n    prefix: {orders: [user, first]}\n",
			":3: models[0].prefix.orders[1]: \"first\": want one of user, item"},
		{"an order twice", "models:\n  - path: x\n    prefix: {orders: [item, item]}\n",
			":3: models[0].prefix.orders[1]: item is given twice"},
		{"no such policy", "models:\n  - path: x\n    prefix: {policy: auto}\n",
			":3: models[0].prefix.policy: \"auto\": want one of predicted"},
		{"a policy without its order", "models:\n  - path: x\n    prefix: {policy: item, orders: [user]}\n",
			":3: models[0].prefix: policy item puts the item first"},
		{"past items as codes", "models:\n  - path: x\n    codes: {size: [1], first_token: [2]}\n    prompt: {history: " +
			"codes, history_item: \"{id}\"}\n", ":4: models[0].prompt.history_item: is for history: text"},
		{"answers for identifier", "models:\n  - path: x\n    scoring: {\"yes\": \"a\", \"no\": \"b\"}\n",
			":3: models[0].scoring: yes and no belong to"},
		{"pointwise without answers", "models:\n  - path: x\n    scoring: {kind: pointwise}\n",
			":3: models[0].scoring: pointwise scoring needs"},
		{"bad tokens", "models:\n  - path: x\n    prompt: {instruction: {tokens: a}}\n",
			":3: models[0].prompt.instruction: tokens: want a list"},
		{"syntax", model + "slo_ms: [\n", ":"},
		{"indented too little", "models:\n  - name: m\n    path: x\n   prompt:\n      user: a\nslo_ms: 3\n", ":4: did not"},
		{"indented too much", "slo_ms: 3\nmodels:\n  - name: m\n      path: x\n", ":4: mapping values"},
		{"a tab", "slo_ms: 3\nmodels:\n\t- name: m\n", ":3: found character"},
		{"never closed", "slo_ms: 3\nauth: {keys: a\nlisten: b\n", ":2: "},
		{"two documents", model + "---\n" + model, "more than one YAML document"},
		{"a name of dots", "models: [{name: .., path: x}]\n", ":1: models[0].name: \"..\": / and :"},
		{"no endpoint", model + "tracing: {endpoint: foo}\n", ":2: tracing.endpoint: \"foo\" is not an address"},
		{"endpoint without scheme", model + "tracing: {endpoint: \"localhost:4318\"}\n",
			":2: tracing.endpoint: \"localhost:4318\" is not an address"},
		{"a trial for ever", model + "reload: {trial_ms: 9300000000000}\n",
			":2: reload.trial_ms: 9300000000000 is not between"},
		{"deadlines", model + "slo_ms: 70000\n", ":2: slo_ms: 70000 is more than limits.deadline_ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Load(Source{File: write(t, c.text)})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestLoadReportsAllProblemsAtOnce(t *testing.T) {
	_, err := Load(Source{File: write(t, "device: gpu\nworkers: 0\n")})
	for _, want := range []string{":1: device", ":2: workers", "models: no model"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}

func TestLaterLayersWin(t *testing.T) {
	name := write(t, "models: [{path: x}]\nslo_ms: 1\ndevice: cpu\nlisten: 127.0.0.1:1\n")
	l, err := Load(Source{
		File: name,
		Env: []string{"GREBE_SLO_MS=2", "GREBE_LISTEN=127.0.0.1:2", "GREBE_MODELS_0_DTYPE=f32", "GREBE_MODELS_1_PATH=y",
			"GREBE_MODELS_0_PROMPT_PREAMBLE=a: b", "GREBE_PORT=tcp://10.0.0.1:80", "HOME=/"},
		Flags: []Setting{{"listen", "127.0.0.1:3", "flag --listen"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, origin string
		got, want    any
	}{
		{"device", name + ":3", l.Device, "cpu"},
		{"slo_ms", "env GREBE_SLO_MS", l.SLOMillis, 2},
		{"listen", "flag --listen", l.Listen, "127.0.0.1:3"},
		{"models[0].dtype", "env GREBE_MODELS_0_DTYPE", l.Models[0].DType, "f32"},
		{"models[1].path", "env GREBE_MODELS_1_PATH", l.Models[1].Path, "y"},
		{"models[0].prompt.preamble", "env GREBE_MODELS_0_PROMPT_PREAMBLE", l.Models[0].Prompt.Preamble.Text, "a: b"},
		{"workers", "default", l.Workers, 1},
	} {
		if c.got != c.want || l.Origin(c.path) != c.origin {
			t.Errorf("%s is %v from %s, want %v from %s", c.path, c.got, l.Origin(c.path), c.want, c.origin)
		}
	}
	if !reflect.DeepEqual(l.Unknown, []string{"GREBE_PORT"}) {
		t.Errorf("unknown variables are %v, want GREBE_PORT only", l.Unknown)
	}
}

func TestBadVariableAndFlagAreNamed(t *testing.T) {
	base := Source{File: write(t, "models: [{path: x}]\n")}
	env := base
	env.Env = []string{"GREBE_WORKERS=lots"}
	flag := base
	flag.Flags = []Setting{{"models[4].dtype", "f32", "flag --set"}}
	unknown := base
	unknown.Flags = []Setting{{"cache.polcy", "f32", "flag --set"}}
	for want, src := range map[string]Source{
		"env GREBE_WORKERS: workers: want a whole number": env,
		"flag --set: models[4].dtype: no such entry":      flag,
		"flag --set: cache.polcy: unknown key: did you":   unknown,
	} {
		if _, err := Load(src); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}

func TestPrintShowsOriginsAndReadsBack(t *testing.T) {
	name := write(t, full)
	l, err := Load(Source{File: name, Env: []string{"GREBE_SLO_MS=150"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := l.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"slo_ms: 150 # env GREBE_SLO_MS", "device: auto # " + name + ":4", "threads: 0 # default",
		"instruction: {tokens: [5, 6, 7]} # " + name + ":17", "first_token: [100, 140, 180] # " + name + ":20",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line with %q in\n%s", want, out.String())
		}
	}
	again, err := Load(Source{File: write(t, out.String())})
	if err != nil {
		t.Fatalf("the printed configuration does not load: %v\n%s", err, out.String())
	}
	if !reflect.DeepEqual(again.Config, l.Config) {
		t.Errorf("the printed configuration means\n%+v, want\n%+v", again.Config, l.Config)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"8GiB": {Bytes: 8 << 30}, "1.5 MiB": {Bytes: 3 << 19}, "500MB": {Bytes: 5e8}, "4096": {Bytes: 4096},
		"0": {}, "80%": {Percent: 80}, "12B": {Bytes: 12},
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "101%", "8 bananas", "NaN", "1e30GiB", "%"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(full)
	f.Add("models: &a [{path: x}]\ncatalog: *a\n")
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Load(Source{File: write(t, text)})
		if err != nil {
			return
		}
		if err := l.Validate(); err != nil {
			t.Errorf("loaded, but not valid: %v", err)
		}
	})
}

// Tables are read as models are, with their own defaults, and complaints name their paths.
func TestTables(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "grebe.yaml")
	text := "models: [{path: m}]\ntables:\n- {name: items, dim: 4, default: [1, 0.5, 0, -2]}\n- {name: users, store: " +
		"redis, addresses: [\"127.0.0.1:6379\"], dim: 128, cache: 1GiB}\n- {name: places, store: file, file: rows.f32, " +
		"dim: 3}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(Source{File: file, Env: []string{"GREBE_TABLES_1_POLICY=lru"}})
	if err != nil {
		t.Fatal(err)
	}
	if a := cfg.Tables[0]; a.Store != "pebble" || a.Cache.Bytes != 64<<20 || a.Default[1] != 0.5 ||
		a.TimeoutMillis != 100 {
		t.Errorf("items: %+v", a)
	}
	if b := cfg.Tables[1]; b.Policy != "lru" || b.Cache.Bytes != 1<<30 || b.Addresses[0] != "127.0.0.1:6379" {
		t.Errorf("users: %+v", b)
	}
	if c := cfg.Tables[2]; c.File != filepath.Join(dir, "rows.f32") {
		t.Errorf("places: %+v", c)
	}
	bad := "models: [{path: m}]\ntables: [{name: a, dim: 0}, {name: a, dim: 4, store: redis}, {name: b, dim: 4, store: " +
		"file, default: [1]}]\n"
	if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Load(Source{File: file})
	for _, want := range []string{"tables[0].dim", "tables[1].name", "tables[1].addresses", "tables[2].file",
		"tables[2].default"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no complaint about %s: %v", want, err)
		}
	}
}

func TestHostsAreNamesWithoutSchemeAndPort(t *testing.T) {
	for host, ok := range map[string]bool{
		"grebe.example": true, "*": true, "10.1.2.3": true, "::1": true,
		"": false, "http://grebe.example": false, "grebe.example:8080": false, "grebe.example/": false,
	} {
		c := Config{Listen: "127.0.0.1:1", Hosts: []string{host}}
		var p problems
		c.validateAddresses(&p)
		if (len(p) == 0) != ok {
			t.Errorf("hosts: [%q]: %v, want it taken: %v", host, p, ok)
		}
	}
}

func TestPrefixOfAModel(t *testing.T) {
	for _, c := range []struct{ model, schedule, policy, orders string }{
		{"", "", "predicted", "user item"},
		{`scoring: {kind: pointwise, "yes": "a", "no": "b"}`, "", "predicted", "user"},
		{`scoring: {kind: pointwise, "yes": "a", "no": "b"}, prefix: {orders: [item, user]}`, "", "predicted", "item user"},
		{`scoring: {kind: pointwise, "yes": "a", "no": "b"}`, "item", "item", "item"}, // the policy leaves no choice
		{"prefix: {policy: bat, orders: [user]}", "longer", "bat", "user"},
		{"prefix: {policy: longer}", "user", "longer", "user item"},
		{"prefix: {orders: [item]}", "user", "item", "item"}, // the model's goes before the schedule's
		{"prefix: {policy: none}", "", "none", "user"},
	} {
		text := "models: [{path: x}]\n"
		if c.model != "" {
			text = "models: [{path: x, " + c.model + "}]\n"
		}
		if c.schedule != "" {
			text += "schedule: {policy: " + c.schedule + "}\n"
		}
		l, err := Load(Source{File: write(t, text)})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		policy, orders := l.PrefixOf(&l.Models[0])
		if policy != c.policy || strings.Join(orders, " ") != c.orders {
			t.Errorf("%s: %s of %v, want %s of %s", text, policy, orders, c.policy, c.orders)
		}
	}
}

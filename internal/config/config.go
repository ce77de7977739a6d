// Package config reads the configuration of a server: a YAML file, then the environment, then flags.
//
// A value remembers where it came from, so that every complaint names a file and line, a variable or
// a flag, and so that `grebe serve --print-config` can show it. Nothing is ignored: an unknown key, a
// wrong type, a contradiction and a value that this build cannot honour are errors. All of them are
// reported at once.
//
// Paths in a file are relative to the file's folder; paths from the environment or from flags are
// relative to the working directory.
package config

import "strings"

// Config is a server's configuration. Each field says its unit and default.
type Config struct {
	Listen      string `yaml:"listen"`       // address of HTTP; 127.0.0.1:8080
	AdminListen string `yaml:"admin_listen"` // address of /debug and admin calls, "" for none; 127.0.0.1:8081
	GRPCListen  string `yaml:"grpc_listen"`  // address of gRPC, "" for none; 127.0.0.1:8082
	// Hosts are names under which clients reach a server without keys, besides loopback and the address that they
	// connect to; "*" for any; none
	Hosts  []string `yaml:"hosts"`
	Device string   `yaml:"device"` // auto, cpu, cuda, or none, which computes nothing: scores have no meaning; auto
	// threads of the CPU device, 0 for one on each core, less one of eight or more; 0
	Threads   int       `yaml:"threads"`
	DataDir   string    `yaml:"data_dir"` // folder for what the server keeps; grebe-data beside the configuration file
	Record    string    `yaml:"record"`   // file to which decisions are written, for a replay; empty: none
	Models    []Model   `yaml:"models"`   // at least one
	Tables    []Table   `yaml:"tables"`   // of embeddings; none
	SLOMillis int       `yaml:"slo_ms"`   // default deadline of a request in milliseconds; 200
	Schedule  Schedule  `yaml:"schedule"`
	Cache     Cache     `yaml:"cache"`
	Workers   int       `yaml:"workers"` // engine replicas on this machine; 1
	Engine    Engine    `yaml:"engine"`
	Limits    Limits    `yaml:"limits"`
	TLS       TLS       `yaml:"tls"`
	Auth      Auth      `yaml:"auth"`
	Dashboard Dashboard `yaml:"dashboard"`
	Tracing   Tracing   `yaml:"tracing"`
	Catalog   Catalog   `yaml:"catalog"`
	Reload    Reload    `yaml:"reload"`
	Cluster   Cluster   `yaml:"cluster"`
}

// Cluster makes the process a member of a cluster. Without a name it is alone.
type Cluster struct {
	Name string `yaml:"name"` // name of the cluster; none: there is no cluster
	// Coordinator is etcd://HOST:PORT,…, kubernetes (in a pod), kubernetes://HOST:PORT/NAMESPACE?token=FILE&ca=FILE,
	// or embedded, which runs etcd in this process with its data in data_dir; none
	Coordinator string `yaml:"coordinator"`
	Node        string `yaml:"node"`   // this process's id in the cluster; the host's name
	Listen      string `yaml:"listen"` // address for other members; 127.0.0.1:7070
	// address under which others reach listen; listen, with the host's name for 0.0.0.0
	Advertise string `yaml:"advertise"`
	// address under which clients reach this process, for people to see; the server's listen, with the host's name for
	// 0.0.0.0
	API  string `yaml:"api"`
	Etcd string `yaml:"etcd"` // address of the embedded etcd; 127.0.0.1:2379
	Zone string `yaml:"zone"` // where the process runs, for people to see; none
	// node (holds KV and computes), kv (holds KV), router (alone: only accepts requests and picks a node, which every
	// member does); node and router
	Roles    []string   `yaml:"roles"`
	TLS      ClusterTLS `yaml:"tls"`
	Insecure bool       `yaml:"insecure"` // members may talk without TLS on addresses that other machines reach; false
	// how a node is picked for a request, see docs/explain/cluster.md: predicted, affinity, emb-kv, kv-only, emb-only,
	// least-loaded, round-robin or user-hash; predicted
	Routing string `yaml:"routing"`
	// Fetch is whether requests fetch KV from other members where that is predicted to be faster than to compute it:
	// on or off; on
	Fetch string `yaml:"fetch"`
	// Users says where users and their events lie: log (the catalog's log), or redis://HOST:PORT,… of a Redis or Valkey
	// server or of some nodes of a cluster; log
	Users            string `yaml:"users"`
	UsersUsername    string `yaml:"users_username"`     // user name at the server of users; none
	UsersPasswordEnv string `yaml:"users_password_env"` // variable that has the password for the server of users; none
}

// UserAddresses returns the addresses in Users; nil: users lie in the log.
func (k *Cluster) UserAddresses() []string {
	list, ok := strings.CutPrefix(k.Users, "redis://")
	if !ok || list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// ClusterTLS names PEM files. Members show each other their certificates, which name cluster and node.
type ClusterTLS struct {
	Cert string `yaml:"cert"` // certificate chain with the name grebe://CLUSTER/NODE; none
	Key  string `yaml:"key"`  // its private key; none
	CA   string `yaml:"ca"`   // authority of all members' certificates; none
}

// Model is one checkpoint to serve.
type Model struct {
	Name  string `yaml:"name"`  // what requests call it; the last part of path
	Path  string `yaml:"path"`  // a Hugging Face folder; required
	DType string `yaml:"dtype"` // auto (the checkpoint's), f32 or bf16; auto
	// KVDType is the format of KV in memory and on disk: auto (dtype's), f32, bf16 or fp8, which takes half of
	// what bf16 does and is less exact; auto
	KVDType string `yaml:"kv_dtype"`
	// Weights is the format of the weights of products: auto (as in the checkpoint, where the device computes in it),
	// bf16 (dtype's), int8 (CPU: quantised at load, half the memory) or fp8 (the same on GPUs from Ada on); auto
	Weights string `yaml:"weights"`
	// WeightsKeep is a list of regular expressions of matrices that weights: int8 or fp8 does not round, such as
	// 'layers\.0\.mlp\.down_proj', or auto alone: the most sensitive tenth, by a calibration on the texts of
	// catalog.items; none
	WeightsKeep []string `yaml:"weights_keep"`
	Prompt      Prompt   `yaml:"prompt"`
	Scoring     Scoring  `yaml:"scoring"`
	Prefix      Prefix   `yaml:"prefix"`
	Blend       Blend    `yaml:"blend"`
	Codes       Codes    `yaml:"codes"`
	// device memory for KV and embeddings, bytes or a share of what is free at the start; 80%
	DeviceMemory Size `yaml:"device_memory"`
	// DeviceRows is the memory for cached rows of item_table on the device, bytes or a share of device_memory; 0: rows
	// are sent with every batch
	DeviceRows Size `yaml:"device_rows"`
	// host memory for KV, bytes or a share; 0: shared with other models, see cache
	HostMemory Size `yaml:"host_memory"`
	Disk       Size `yaml:"disk"` // room for KV on disk, bytes; 0
	// ItemTable is the table (of tables) with the rows of a model of events' items; the checkpoint's
	ItemTable string       `yaml:"item_table"`
	Tables    []ModelTable `yaml:"tables"` // where other tables of a model of events have their rows; the checkpoint's
}

// ModelTable takes the rows of one of a model's tables from a table of tables.
type ModelTable struct {
	Name  string `yaml:"name"`  // name of the table in the model's config.json; required
	Table string `yaml:"table"` // name of the table in tables that has the rows; required
	// DeviceRows is the memory for its cached rows on the device, bytes or a share of device_memory; 0: rows are sent
	// with every batch
	DeviceRows Size `yaml:"device_rows"`
}

// KeepAuto in Model.WeightsKeep stands for what a calibration chooses.
const KeepAuto = "auto"

// Prompt holds a model's templates. A key that is no template (preamble, lead_in, instruction, generate_instruction)
// also takes tokens instead of a text: {tokens: [3, 17]}.
type Prompt struct {
	Preamble Text   `yaml:"preamble"` // text at the beginning of every prompt; none
	User     string `yaml:"user"`     // template of the user segment: {text}, {history}; "{text}"
	// template of a query that documents are reranked by: {text}; user
	Query      string `yaml:"query"`
	Completion string `yaml:"completion"` // template of a prompt of /v1/completions: {text}; "{text}"
	// template of a message of /v1/chat/completions: {role}, {text}; the checkpoint's
	ChatMessage string `yaml:"chat_message"`
	ChatEnd     string `yaml:"chat_end"` // text after the messages, such as the header of the answer; none
	History     string `yaml:"history"`  // how {history} lists items: text, codes or identifier; text
	// template of an item that {history} lists as text: {text}, {id}, {attributes.NAME}; "{text}"
	HistoryItem string `yaml:"history_item"`
	Separator   string `yaml:"separator"` // text between listed items; "\n"
	// template of an item: {text}, {id}, {attributes.NAME}; "{text}"
	Item                string `yaml:"item"`
	LeadIn              Text   `yaml:"lead_in"`              // text before the items of an item-first prompt; none
	Instruction         Text   `yaml:"instruction"`          // the question of a ranking; none
	GenerateInstruction Text   `yaml:"generate_instruction"` // the question of a generation; none
}

// Scoring says how a ranking reads its scores.
type Scoring struct {
	Kind string `yaml:"kind"` // identifier or pointwise; identifier
	// the answer that scores, for pointwise: a text that is one token of the vocabulary, or a token's number; none
	Yes Token `yaml:"yes"`
	No  Token `yaml:"no"` // the answer that it is compared with, for pointwise, given likewise; none
}

// Prefix says what prefix=auto means for one model.
type Prefix struct {
	Policy string `yaml:"policy"` // how auto chooses the order, with the values of schedule.policy; schedule.policy's
	// Orders are the orders that auto may choose: user, item; both, and user alone where scoring is pointwise
	Orders []string `yaml:"orders"`
}

// Blend says how requests with prefix blend are computed: KV from anywhere replaces that of tokens of an ordinary
// prompt, and a share of them is computed again. The answers are near those of the whole prompt, not equal to them.
type Blend struct {
	Auto    bool    `yaml:"auto"`    // whether auto may blend too, where that is predicted to be faster; false
	Items   float64 `yaml:"items"`   // share of the items' tokens that is computed again, 0 to 1; 0.3
	History float64 `yaml:"history"` // share of the history's tokens with a prototype that is computed again, 0 to 1; 0.3
	Layers  int     `yaml:"layers"`  // how many layers compute all tokens before some are chosen, 1 or more; 2
	Window  int     `yaml:"window"`  // how many of the last tokens are computed in any case; 0
	First   string  `yaml:"first"`   // what stands first in the prompt: user or item; user
	// whether grebe index --importance, where it ran, says which tokens of items are computed again; true
	Importance bool `yaml:"importance"`
	// whether prototypes replace tokens of histories, where grebe index --prototypes made some; true
	Prototypes bool `yaml:"prototypes"`
	// DriftLimit is how far a prototype may be from its token, above 0 to 1: a token whose prototype is farther is
	// computed; 0.6
	DriftLimit float64 `yaml:"drift_limit"`
}

// Codes says which tokens stand for semantic IDs: ranges, or texts of the vocabulary.
type Codes struct {
	FirstToken []int32  `yaml:"first_token"` // first token of each level; none
	Size       []int32  `yaml:"size"`        // codes of each level; none
	Pattern    []string `yaml:"pattern"`     // token text of each level, with one %d; none
	BeamWidths []int    `yaml:"beam_widths"` // most beams kept at each level, of requests that are wider; none
}

// Schedule says what prefix=auto means, for models that do not say it themselves (models[].prefix).
type Schedule struct {
	// how auto chooses the order: predicted (the least time), bat (the paper's rule), longer (the longer side first),
	// user, item, or none (user first, nothing is reused); predicted
	Policy string `yaml:"policy"`
}

// Cache bounds what is kept of KV.
type Cache struct {
	Policy string `yaml:"policy"` // policy of eviction: default, lru, laru or sieve; default
	// host memory for KV of all models without their own, bytes or a share of the machine's memory; 4GiB
	HostMemory Size `yaml:"host_memory"`
	Disk       Size `yaml:"disk"` // room for KV on disk, an equal part for each model, bytes; 0
	// compute items of the catalog before a request needs them, when idle: on or off; on
	Ahead string `yaml:"ahead"`
	// Boundary says how host memory is divided between KV of a model of events and cached rows of its item_table:
	// climb moves the boundary to where memory saves more time, fixed keeps host_memory and the table's cache; climb
	Boundary string `yaml:"boundary"`
	// DeviceBoundary says the same of a device's memory, for KV and the rows of device_rows: climb moves the boundary
	// unless all rows fit, fixed keeps device_rows; fixed
	DeviceBoundary string `yaml:"device_boundary"`
}

// Engine bounds the batches of a model.
type Engine struct {
	MaxTokens int `yaml:"max_tokens"` // most tokens computed for one request; 131072
	Queue     int `yaml:"queue"`      // requests waiting for a batch; 1024
}

// Limits bound a request.
type Limits struct {
	Body           Size `yaml:"body"`        // bytes of a request's body; 16MiB
	InFlight       int  `yaml:"in_flight"`   // requests under way, more are refused with 429; 1024
	DeadlineMillis int  `yaml:"deadline_ms"` // longest deadline that a request may name, milliseconds; 60000
	ShutdownMillis int  `yaml:"shutdown_ms"` // time for requests under way when the server stops, milliseconds; 10000
	// time from not being ready to closing the listeners when the server stops, milliseconds; 0
	DrainMillis int `yaml:"drain_ms"`
}

// TLS names PEM files. With cert and key, HTTP and gRPC speak TLS alone.
type TLS struct {
	Cert     string `yaml:"cert"`      // certificate chain; none
	Key      string `yaml:"key"`       // its private key; none
	ClientCA string `yaml:"client_ca"` // authorities of the certificates that clients must show; none: clients show none
}

// Auth says who may ask.
type Auth struct {
	Keys string `yaml:"keys"` // file of API keys, see `grebe key`; none: everyone may
}

// Tracing sends OpenTelemetry spans of requests.
type Tracing struct {
	// address of OTLP over HTTP, such as http://localhost:4318/v1/traces; none: no spans
	Endpoint string `yaml:"endpoint"`
	Sample   Size   `yaml:"sample"` // share of the requests whose callers did not decide; 1%
}

// Dashboard says what the page shows.
type Dashboard struct {
	UserIDs string `yaml:"user_ids"` // ids of the users asked for most: hidden or shown; hidden
	Story   bool   `yaml:"story"`    // lead through a ranking on the first screen, which changes a user; false
}

// Catalog names NDJSON files that are loaded at start, and says how much of the past is kept.
type Catalog struct {
	Items    string `yaml:"items"`    // file of items; none
	Users    string `yaml:"users"`    // file of users; none
	Versions int    `yaml:"versions"` // versions of the items that can be gone back to, 1 for the latest alone; 16
}

// Reload says how another checkpoint of a model takes over while the server runs.
type Reload struct {
	Warm Size `yaml:"warm"` // share of the model's cache for items that are computed before it serves; 25%
	// time in which a failing request brings the old checkpoint back; both are loaded, milliseconds; 10000
	TrialMillis int `yaml:"trial_ms"`
}

// Default returns the configuration of a server that is told nothing. It has no model.
func Default() *Config {
	return &Config{
		Listen: "127.0.0.1:8080", AdminListen: "127.0.0.1:8081", GRPCListen: "127.0.0.1:8082",
		Device: "auto", DataDir: "./grebe-data", SLOMillis: 200, Workers: 1,
		Schedule: Schedule{Policy: "predicted"},
		Cache: Cache{Policy: "default", HostMemory: Size{Bytes: 4 << 30}, Ahead: "on", Boundary: "climb",
			DeviceBoundary: "fixed"},
		Engine:    Engine{MaxTokens: 131072, Queue: 1024},
		Limits:    Limits{Body: Size{Bytes: 16 << 20}, InFlight: 1024, DeadlineMillis: 60000, ShutdownMillis: 10000},
		Catalog:   Catalog{Versions: 16},
		Dashboard: Dashboard{UserIDs: "hidden"},
		Tracing:   Tracing{Sample: Size{Percent: 1}},
		Reload:    Reload{Warm: Size{Percent: 25}, TrialMillis: 10000},
		Cluster: Cluster{Listen: "127.0.0.1:7070", Etcd: "127.0.0.1:2379", Roles: []string{"node", "router"},
			Routing: "predicted", Fetch: "on", Users: "log"},
	}
}

// Table is a table of embeddings.
type Table struct {
	Name  string `yaml:"name"`  // what models and requests call it; required
	Store string `yaml:"store"` // pebble (in data_dir/tables), file (mapped) or redis; pebble
	File  string `yaml:"file"`  // for the store file: rows of numbers in format, one after the other; none
	// host:port of a Redis or Valkey server, or of some nodes of a cluster; none
	Addresses     []string  `yaml:"addresses"`
	Username      string    `yaml:"username"`     // user name for Redis; none
	PasswordEnv   string    `yaml:"password_env"` // variable that has the password for Redis; none
	Prefix        string    `yaml:"prefix"`       // prefix of the table's keys in Redis; grebe:NAME:
	Dim           int       `yaml:"dim"`          // numbers of a row; required
	Format        string    `yaml:"format"`       // format of the numbers, in the store and in memory: f32 or bf16; f32
	Cache         Size      `yaml:"cache"`        // memory for rows of pebble and redis, bytes, 0 for none; 64MiB
	Policy        string    `yaml:"policy"`       // policy of eviction: default, lru, laru or sieve; default
	Default       []float32 `yaml:"default"`      // row for keys that the table does not have, and in an outage; zeros
	TimeoutMillis int       `yaml:"timeout_ms"`   // time for one batch at the store, milliseconds; 100
}

func (t *Table) setDefaults() {
	*t = Table{Store: "pebble", Format: "f32", Cache: Size{Bytes: 64 << 20}, Policy: "default", TimeoutMillis: 100}
}

// setDefaults fills in a model before anything is read into it.
// ReadsChatTemplate reports whether chats with the model are joined by the chat template of its checkpoint: it takes
// chats, and the configuration has no template for them.
func (m *Model) ReadsChatTemplate() bool {
	return m.Prompt.ChatMessage == "" && m.HasCodes()
}

// HasCodes reports whether the model has tokens for items' codes: it can search for items.
func (m *Model) HasCodes() bool { return len(m.Codes.FirstToken)+len(m.Codes.Pattern) > 0 }

func (m *Model) setDefaults() {
	*m = Model{
		DType:   "auto",
		KVDType: "auto",
		Weights: "auto",
		Prompt:  Prompt{User: "{text}", History: "text", HistoryItem: "{text}", Separator: "\n", Item: "{text}"},
		Scoring: Scoring{Kind: "identifier"},
		Blend: Blend{Items: 0.3, History: 0.3, Layers: 2, First: "user", Importance: true, Prototypes: true,
			DriftLimit: 0.6},
		DeviceMemory: Size{Percent: 80},
	}
}

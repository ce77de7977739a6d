package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"grebe/app"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/model"
	"grebe/model/hstu"
)

type serveCmd struct {
	Config      string   `short:"c" type:"path" help:"Configuration file." placeholder:"FILE"`
	PrintConfig bool     `help:"Print the configuration with the origin of each value, and exit."`
	Model       string   `type:"path" help:"Folder of the (first) model: models[0].path." placeholder:"DIR"`
	Listen      *string  `help:"Address of HTTP." placeholder:"HOST:PORT"`
	AdminListen *string  `help:"Address of /debug and admin calls; empty for none." placeholder:"HOST:PORT"`
	GRPCListen  *string  `name:"grpc-listen" help:"Address of gRPC; empty for none." placeholder:"HOST:PORT"`
	Device      *string  `want:"one of auto, cpu, cuda, none"`
	Threads     *int     `want:"at least 0 and at most 1024"`
	DataDir     *string  `type:"path" help:"Folder for what the server keeps." placeholder:"DIR"`
	SLOMS       *int     `name:"slo-ms" want:"at least 1 and at most 3600000" placeholder:"MS"`
	Set         []string `sep:"none" placeholder:"KEY=VALUE"`
	cli.LogFlags
}

func (serveCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device":  "auto, cpu or cuda; none skips all computation, for benchmarks.",
		"threads": "Threads of the CPU; 0: one for each core, but one fewer if there are eight cores or more.",
		"slo-ms":  "Default deadline of a request in milliseconds.",
		"set":     "Set any key of the configuration, such as models[0].dtype=f32.",
	}
}

func (serveCmd) Help() string {
	return `Values come from the file, then from the environment (GREBE_LISTEN, GREBE_MODELS_0_PATH, ...), then
from flags; later ones win. Ctrl-C or SIGTERM finishes the requests under way and stops. SIGHUP reads the
configuration again: keys, certificates and deadlines change at once, everything else at the next start.

Examples:

    grebe serve -c grebe.yaml
    grebe serve --model ./Qwen2-0.5B --set 'models[0].prompt.instruction= Choose: '
    grebe serve -c grebe.yaml --listen 0.0.0.0:8080 --print-config`
}

func (c *serveCmd) Run(w *cli.World) error {
	flags, err := c.settings()
	if err != nil {
		return err
	}
	if c.Config == "" && c.Model == "" && !hasModel(w.Env) {
		return cli.Usagef("serve what? Give a configuration with -c FILE, or a checkpoint with --model DIR")
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env, Flags: flags})
	if err != nil {
		return err
	}
	if c.PrintConfig {
		return cfg.Print(w.Stdout)
	}
	if err := c.checkPaths(cfg); err != nil {
		return err
	}
	log := c.Logger(w.Stderr)
	for _, name := range cfg.Unknown {
		log.Warn("an environment variable matches no key of the configuration", "name", name)
	}
	again := func() (*config.Config, error) {
		l, err := config.Load(config.Source{File: c.Config, Env: w.Env, Flags: flags})
		if err != nil {
			return nil, err
		}
		return &l.Config, nil
	}
	p := process(w)
	p.Again = again
	err = app.Serve(w.Ctx, &cfg.Config, options(log), p)
	if errors.Is(err, app.ErrInUse) {
		err = fmt.Errorf("%w: stop that process, or give this server another folder with --data-dir DIR", err)
	}
	return err
}

// checkPaths returns an error that names the place in the configuration if the path of a model is no checkpoint.
func (c *serveCmd) checkPaths(cfg *config.Loaded) error {
	for i := range cfg.Models {
		path := cfg.Models[i].Path
		_, err := model.ReadConfig(path)
		if hstu.Is(path) {
			_, err = hstu.ReadConfig(path)
		}
		if err == nil {
			continue
		}
		key := fmt.Sprintf("models[%d].path", i)
		err = fmt.Errorf("%s: %s: %w", cfg.Origin(key), key, err)
		if c.Config != "" {
			err = fmt.Errorf("%w\nTry: grebe doctor -c %s", err, c.Config)
		}
		return err
	}
	return nil
}

func hasModel(env []string) bool {
	for _, kv := range env {
		if strings.HasPrefix(kv, config.EnvName("models[0].path")+"=") {
			return true
		}
	}
	return false
}

// settings turns flags into settings of the configuration; --set comes first, so that a flag of its
// own wins over it.
func (c *serveCmd) settings() ([]config.Setting, error) {
	var out []config.Setting
	for _, kv := range c.Set {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, cli.Usagef("--set %q: want KEY=VALUE", kv)
		}
		out = append(out, config.Setting{Path: key, Value: value, Origin: "flag --set " + key})
	}
	add := func(path, flag string, value *string) {
		if value != nil {
			out = append(out, config.Setting{Path: path, Value: *value, Origin: "flag --" + flag})
		}
	}
	number := func(v *int) *string {
		if v == nil {
			return nil
		}
		s := strconv.Itoa(*v)
		return &s
	}
	if c.Model != "" {
		add("models[0].path", "model", &c.Model)
	}
	add("listen", "listen", c.Listen)
	add("admin_listen", "admin-listen", c.AdminListen)
	add("grpc_listen", "grpc-listen", c.GRPCListen)
	add("device", "device", c.Device)
	add("threads", "threads", number(c.Threads))
	add("data_dir", "data-dir", c.DataDir)
	add("slo_ms", "slo-ms", number(c.SLOMS))
	return out, nil
}

// Package config reads the settings of a program: flags, environment, a YAML
// file, defaults, in this order of strength. Every setting is a field of a
// struct with kong tags, and has one name in four places:
//
//	--kafka.brokers a:9092,b:9092
//	TOCSIN_KAFKA_BROKERS=a:9092,b:9092
//	kafka: {brokers: [a:9092, b:9092]}        in the file that --config names
//	`name:"brokers"` in a struct embedded with `prefix:"kafka."`
//
// Tags beyond kong's own:
//
//	secret:""         never printed; may also come from a file (--x-file, TOCSIN_X_FILE)
//	env:"OTHER_NAME"  a further variable that is read when the TOCSIN_ one is absent
//
// It owns how settings come in and how their errors read, not what they mean:
// that is said by the Validate method of the struct that has them. It keeps
// nothing; what was read is in the struct.
//
// Invariant: what is not understood is an error, never ignored. That goes for
// flags, for keys of the file and for variables that begin with TOCSIN_.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// EnvPrefix is what the environment variables of all settings begin with.
const EnvPrefix = "TOCSIN_"

// Program is a command line.
type Program struct {
	// Name and About head the help and, Name, every message.
	Name, About string
	// Settings points at the struct to fill. It may have commands.
	Settings any
	// Stdout and Stderr are where help and --config.print go; nil is the
	// process's own.
	Stdout, Stderr io.Writer
}

// flags are the settings about settings, which every program has.
type flags struct {
	Config      string `name:"config" placeholder:"FILE" help:"YAML file with settings; flags and environment beat it."`
	ConfigCheck bool   `name:"config.check" help:"Check the settings and stop: exit code 0 or 2."`
	ConfigPrint bool   `name:"config.print" help:"Print the settings in force and where each came from, secrets left out, and stop."`
}

// aboutSettings says whether a flag is one of flags, which no file may set.
func aboutSettings(name string) bool {
	return name == "help" || name == "config" || strings.HasPrefix(name, "config.")
}

// Parse fills p.Settings from args and everything else that Parse reads, and
// validates it: every struct in it, embedded or a command's, that has a
// Validate() error. The command found is run with the context's Run. A nil
// context without error means that all was done already (help, --config.check,
// --config.print).
//
// Every error is a wrong use (ExitCode says 2) and names the setting.
func (p Program) Parse(args []string) (_ *kong.Context, err error) {
	if p.Stdout == nil {
		p.Stdout = os.Stdout
	}
	if p.Stderr == nil {
		p.Stderr = os.Stderr
	}
	own := &flags{}
	src := &sources{}
	parser, err := kong.New(p.Settings,
		kong.Name(p.Name),
		kong.Description(p.About),
		kong.Writers(p.Stdout, p.Stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.Embed(own),
		kong.PostBuild(prepare),
		kong.WithBeforeResolve(src.load),
		kong.Resolvers(src),
		// Kong ends the process after --help; here the caller does.
		kong.Exit(func(int) { panic(helpShown{}) }),
	)
	if err != nil {
		return nil, fmt.Errorf("settings of %s: %w", p.Name, err)
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case helpShown:
			err = nil
		default:
			panic(r)
		}
	}()
	ctx, err := parser.Parse(args)
	if err != nil {
		return nil, Usage(err)
	}
	switch {
	case own.ConfigPrint:
		return nil, src.print(p.Stdout, ctx)
	case own.ConfigCheck:
		return nil, nil
	}
	return ctx, nil
}

// helpShown unwinds Parse after --help.
type helpShown struct{}

// envName is the variable of a flag: kafka.topic-prefix is TOCSIN_KAFKA_TOPIC_PREFIX.
func envName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(flag))
}

// prepare completes kong's model: every flag gets its variable, every secret
// its flag for a file, and names that would be two things at once are refused.
func prepare(k *kong.Kong) error { return prepareNode(k.Model.Node, nil) }

func prepareNode(node *kong.Node, above []*kong.Flag) error {
	node.Flags = withSecretFiles(node.Flags)
	visible := append(slices.Clone(above), node.Flags...)
	names, envs := map[string]bool{}, map[string]string{}
	for _, f := range visible {
		if own := envName(f.Name); envs[own] != "" {
			return fmt.Errorf("--%s and --%s have the same variable %s", envs[own], f.Name, own)
		} else {
			envs[own] = f.Name
		}
		names[f.Name] = true
	}
	for _, f := range visible {
		for i, c := range f.Name {
			if c == '.' && names[f.Name[:i]] && !aboutSettings(f.Name) {
				return fmt.Errorf("--%s is also the group of --%s: a file cannot hold both", f.Name[:i], f.Name)
			}
		}
	}
	for _, f := range node.Flags {
		if f.Name != "help" {
			f.Tag.Envs = append([]string{envName(f.Name)}, f.Tag.Envs...)
			f.Envs = f.Tag.Envs
		}
	}
	for _, child := range node.Children {
		if err := prepareNode(child, visible); err != nil {
			return err
		}
	}
	return nil
}

// Usage marks err as a wrong use of the program: ExitCode says 2 for it.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// ExitCode is what a process that ends with err answers: 0 done, 1 failed,
// 2 wrong use or settings.
func ExitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return 2
	default:
		return 1
	}
}

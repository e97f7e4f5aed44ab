package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// layer is how strong a value's origin is.
type layer int

const (
	byDefault layer = iota
	byFile
	byEnv
	byFlag
)

// sources is where values that are not on the command line come from. Kong
// itself reads the environment; sources puts the file below it (kong would put
// it above) and secrets' files beside both.
type sources struct {
	loaded bool
	path   string           // of the settings file, "" without one
	file   map[string]entry // by flag name
}

// load is kong's hook between reading the command line and everything else.
// Kong calls it once for each part of the command line; the first does it all.
func (s *sources) load(ctx *kong.Context) error {
	if s.loaded {
		return nil
	}
	s.loaded = true
	known := map[string]*kong.Flag{}
	collect(ctx.Model.Node, known)
	if err := checkEnvironment(os.Environ(), known); err != nil {
		return err
	}
	active := ctx.Flags()
	for _, f := range active {
		if f.Name == "config" {
			s.path, _ = ctx.FlagValue(f).(string)
		}
	}
	if s.path != "" {
		data, err := os.ReadFile(s.path)
		if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		if s.file, err = parseFile(data, known); err != nil {
			return inFile(s.path, err)
		}
		if err := tryAll(s.file, active); err != nil {
			return inFile(s.path, err)
		}
	}
	return s.checkSecrets(ctx)
}

// collect puts the flags of node and of all its commands into known: a file or
// an environment may serve several commands of one program.
func collect(node *kong.Node, known map[string]*kong.Flag) {
	for _, f := range node.Flags {
		known[f.Name] = f
	}
	for _, child := range node.Children {
		collect(child, known)
	}
}

// checkEnvironment refuses variables under our prefix that no setting has.
func checkEnvironment(environ []string, known map[string]*kong.Flag) error {
	envs := map[string]bool{}
	for _, f := range known {
		for _, e := range f.Tag.Envs {
			envs[e] = true
		}
	}
	var errs []error
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, EnvPrefix) && !envs[name] {
			errs = append(errs, fmt.Errorf("variable %s: there is no such setting%s", name, didYouMean(name, envs)))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// tryAll parses what the file says for the flags in use, so that an error can
// name the line. A flag of a command that is not in use may have the same name
// and another type, so nothing is said about those.
func tryAll(file map[string]entry, active []*kong.Flag) error {
	var errs []error
	for _, f := range active {
		e, ok := file[f.Name]
		if !ok {
			continue
		}
		if e.list && !f.IsSlice() {
			errs = append(errs, &lineError{e.line, f.Name + ": one value is expected, not a list"})
			continue
		}
		err := f.Parse(kong.Scan().PushTyped(e.text(f), kong.FlagValueToken), reflect.New(f.Target.Type()).Elem())
		if err != nil {
			errs = append(errs, &lineError{e.line, strings.TrimPrefix(err.Error(), "--")})
		}
	}
	return byLine(errs)
}

// Validate implements kong.Resolver; load has checked already.
func (s *sources) Validate(*kong.Application) error { return nil }

// Resolve gives kong the value of a flag that is not on the command line: nil
// leaves it at the environment's or the default.
func (s *sources) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if companion := secretFileOf(ctx, flag); companion != nil && s.layer(ctx, companion) > s.layer(ctx, flag) {
		return s.readSecret(ctx, companion)
	}
	if s.layer(ctx, flag) == byFile {
		return s.file[flag.Name].text(flag), nil
	}
	return nil, nil
}

// layer is where a flag's value comes from.
func (s *sources) layer(ctx *kong.Context, flag *kong.Flag) layer {
	for _, p := range ctx.Path {
		if p.Flag == flag && !p.Resolved {
			return byFlag
		}
	}
	if _, ok := envOf(flag); ok {
		return byEnv
	}
	if _, ok := s.file[flag.Name]; ok {
		return byFile
	}
	return byDefault
}

// envOf is the first variable of a flag that is set, in the order kong asks.
func envOf(flag *kong.Flag) (string, bool) {
	for _, name := range flag.Tag.Envs {
		if _, ok := os.LookupEnv(name); ok {
			return name, true
		}
	}
	return "", false
}

// origin says in words where a flag's value comes from.
func (s *sources) origin(ctx *kong.Context, flag *kong.Flag) string {
	switch s.layer(ctx, flag) {
	case byFlag:
		return "flag"
	case byEnv:
		name, _ := envOf(flag)
		return name
	case byFile:
		return fmt.Sprintf("%s:%d", s.path, s.file[flag.Name].line)
	default:
		return "default"
	}
}

// didYouMean names the known word nearest to a mistyped one, if one is near.
func didYouMean(word string, known map[string]bool) string {
	best, least := "", 1+len(word)/4
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d <= least && (best == "" || d < least) {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is the number of insertions, deletions, changes and swaps of
// neighbours that make a into b.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

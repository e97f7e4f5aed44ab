package config

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
)

// print writes the settings in force as YAML, each with its origin. It is itself
// a settings file: a secret that is set is a comment in it.
func (s *sources) print(w io.Writer, ctx *kong.Context) error {
	flags := slices.Clone(ctx.Flags())
	flags = slices.DeleteFunc(flags, func(f *kong.Flag) bool {
		return aboutSettings(f.Name) || isSecretFile(flags, f) && s.layer(ctx, f) == byDefault
	})
	slices.SortFunc(flags, func(a, b *kong.Flag) int {
		return slices.Compare(strings.Split(a.Name, "."), strings.Split(b.Name, "."))
	})
	var out strings.Builder
	var groups []string
	for _, f := range flags {
		parts := strings.Split(f.Name, ".")
		above, key := parts[:len(parts)-1], parts[len(parts)-1]
		for i, g := range above {
			if i >= len(groups) || groups[i] != g {
				fmt.Fprintf(&out, "%s%s:\n", strings.Repeat("  ", i), g)
				groups = nil
			}
		}
		groups = above
		indent := strings.Repeat("  ", len(above))
		if isSecret(f) && !f.Target.IsZero() {
			origin := s.origin(ctx, f)
			if c := secretFileOf(ctx, f); s.layer(ctx, c) > s.layer(ctx, f) {
				origin = s.origin(ctx, c)
			}
			fmt.Fprintf(&out, "%s# %s: (secret)  # %s\n", indent, key, origin)
			continue
		}
		text, err := inYAML(f)
		if err != nil {
			return fmt.Errorf("print --%s: %w", f.Name, err)
		}
		fmt.Fprintf(&out, "%s%s: %s  # %s\n", indent, key, text, s.origin(ctx, f))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// inYAML is a flag's value on one line of YAML.
func inYAML(f *kong.Flag) (string, error) {
	if !f.IsSlice() {
		return one(f.Target)
	}
	items := make([]string, f.Target.Len())
	for i := range items {
		var err error
		if items[i], err = one(f.Target.Index(i)); err != nil {
			return "", err
		}
	}
	return "[" + strings.Join(items, ", ") + "]", nil
}

func one(v reflect.Value) (string, error) {
	val := v.Interface()
	if s, ok := val.(fmt.Stringer); ok {
		val = s.String()
	} else if v.Kind() == reflect.String {
		val = v.String()
	}
	text, err := yaml.MarshalWithOptions(val, yaml.Flow(true))
	return strings.TrimSpace(string(text)), err
}

package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// secretTag marks a setting that is never printed and may come from a file.
const secretTag = "secret"

// fileSuffix makes the name of the setting that names a secret's file.
const fileSuffix = "-file"

func isSecret(f *kong.Flag) bool { return f.Tag.Has(secretTag) }

// withSecretFiles puts after each secret the flag that names a file with it.
func withSecretFiles(flags []*kong.Flag) []*kong.Flag {
	var out []*kong.Flag
	for _, f := range flags {
		out = append(out, f)
		if !isSecret(f) {
			continue
		}
		target := reflect.New(reflect.TypeFor[string]()).Elem()
		help := fmt.Sprintf("File that holds --%s.", f.Name)
		companion := &kong.Flag{
			Group:       f.Group,
			PlaceHolder: "FILE",
			Value: &kong.Value{
				Name:         f.Name + fileSuffix,
				Help:         help,
				OrigHelp:     help,
				Target:       target,
				DefaultValue: reflect.ValueOf(""),
				Mapper:       kong.NewRegistry().RegisterDefaults().ForValue(target),
				Tag:          &kong.Tag{Sep: -1, MapSep: -1},
			},
		}
		companion.Flag = companion
		out = append(out, companion)
	}
	return out
}

// secretFileOf is the flag that names the file of a secret, nil for others.
func secretFileOf(ctx *kong.Context, flag *kong.Flag) *kong.Flag {
	if !isSecret(flag) {
		return nil
	}
	for _, f := range ctx.Flags() {
		if f.Name == flag.Name+fileSuffix {
			return f
		}
	}
	return nil
}

// isSecretFile says whether f, one of flags, names the file of a secret.
func isSecretFile(flags []*kong.Flag, f *kong.Flag) bool {
	name, ok := strings.CutSuffix(f.Name, fileSuffix)
	return ok && slices.ContainsFunc(flags, func(s *kong.Flag) bool { return s.Name == name && isSecret(s) })
}

// checkSecrets refuses a secret that is given twice with equal strength.
func (s *sources) checkSecrets(ctx *kong.Context) error {
	for _, f := range ctx.Flags() {
		companion := secretFileOf(ctx, f)
		if companion == nil {
			continue
		}
		if at := s.layer(ctx, f); at != byDefault && at == s.layer(ctx, companion) {
			return fmt.Errorf("--%s and --%s are both set (%s, %s): one is enough",
				f.Name, companion.Name, s.origin(ctx, f), s.origin(ctx, companion))
		}
	}
	return nil
}

// readSecret is the content of the file that a companion flag names, without
// the line break at its end. Other white space may belong to the secret.
func (s *sources) readSecret(ctx *kong.Context, companion *kong.Flag) (string, error) {
	path, _ := ctx.FlagValue(companion).(string)
	if s.layer(ctx, companion) == byFile {
		path = s.file[companion.Name].values[0]
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read it from %s: %w", s.origin(ctx, companion), err)
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" {
		return "", errors.New("the file " + path + " is empty")
	}
	return secret, nil
}

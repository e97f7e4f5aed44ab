package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// entry is what the file says for one setting: one value, or a list.
type entry struct {
	line   int
	values []string
	list   bool
}

// text is the entry as a flag would have it on the command line.
func (e entry) text(flag *kong.Flag) string {
	if e.list {
		return kong.JoinEscaped(e.values, flag.Tag.Sep)
	}
	return e.values[0]
}

// lineError is something wrong at a line of the file.
type lineError struct {
	line int
	what string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.what) }

// byLine joins errors in the order of their lines.
func byLine(errs []error) error {
	line := func(err error) int {
		var le *lineError
		if errors.As(err, &le) {
			return le.line
		}
		return 0
	}
	slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(line(a), line(b)) })
	return errors.Join(errs...)
}

// inFile names the file in front of each error in it.
func inFile(path string, err error) error {
	lines := strings.Split(err.Error(), "\n")
	return errors.New(path + ": " + strings.Join(lines, "\n"+path+": "))
}

// parseFile reads a settings file: YAML whose nested keys, joined by dots, are
// flag names. All that is wrong is said at once, each with its line.
func parseFile(data []byte, known map[string]*kong.Flag) (map[string]entry, error) {
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			return nil, &lineError{syntax.Token.Position.Line, syntax.Message}
		}
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	r := &fileReader{known: known, entries: map[string]entry{}}
	for i, doc := range file.Docs {
		if i > 0 {
			r.fail(doc, "only one YAML document is read")
			break
		}
		if doc.Body != nil {
			r.group(doc.Body, "")
		}
	}
	return r.entries, byLine(r.errs)
}

type fileReader struct {
	known   map[string]*kong.Flag
	entries map[string]entry
	errs    []error
}

func (r *fileReader) fail(at ast.Node, format string, args ...any) {
	line := 0
	if t := at.GetToken(); t != nil && t.Position != nil {
		line = t.Position.Line
	}
	r.errs = append(r.errs, &lineError{line, fmt.Sprintf(format, args...)})
}

// group reads a mapping; prefix ends in a dot or is empty.
func (r *fileReader) group(node ast.Node, prefix string) {
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, pair := range n.Values {
			r.pair(pair, prefix)
		}
	case *ast.MappingValueNode:
		r.pair(n, prefix)
	case *ast.NullNode, *ast.CommentGroupNode:
		// A group whose every line is commented out.
	default:
		r.fail(node, "%s: settings are expected below, not a value", cmp.Or(strings.TrimSuffix(prefix, "."), "the file"))
	}
}

func (r *fileReader) pair(pair *ast.MappingValueNode, prefix string) {
	name := prefix + pair.Key.GetToken().Value
	_, ok := r.known[name]
	switch {
	case aboutSettings(name):
		r.fail(pair.Key, "%s cannot be set in a file", name)
	case ok:
		e, err := leaf(pair.Value)
		if err != nil {
			r.fail(pair.Key, "%s: %v", name, err)
			return
		}
		if before, twice := r.entries[name]; twice {
			r.fail(pair.Key, "%s was set in line %d already", name, before.line)
			return
		}
		e.line = pair.Key.GetToken().Position.Line
		r.entries[name] = e
	case r.isGroup(name):
		r.group(pair.Value, name+".")
	default:
		r.fail(pair.Key, "unknown key %s%s", name, didYouMean(name, r.names()))
	}
}

func (r *fileReader) isGroup(name string) bool {
	for k := range r.known {
		if strings.HasPrefix(k, name+".") && !aboutSettings(k) {
			return true
		}
	}
	return false
}

// names are the keys a file may have, groups too.
func (r *fileReader) names() map[string]bool {
	names := map[string]bool{}
	for k := range r.known {
		if aboutSettings(k) {
			continue
		}
		names[k] = true
		for i, c := range k {
			if c == '.' {
				names[k[:i]] = true
			}
		}
	}
	return names
}

// leaf is the value of one setting.
func leaf(node ast.Node) (entry, error) {
	seq, ok := node.(*ast.SequenceNode)
	if !ok {
		v, err := scalar(node)
		return entry{values: []string{v}}, err
	}
	e := entry{list: true}
	for _, item := range seq.Values {
		v, err := scalar(item)
		if err != nil {
			return entry{}, err
		}
		e.values = append(e.values, v)
	}
	return e, nil
}

// scalar is a value as it is written in the file, so that 300s, 08 and true
// mean what they mean on the command line.
func scalar(node ast.Node) (string, error) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	case *ast.NullNode:
		return "", errors.New("has no value; leave the key out for the default")
	case *ast.AnchorNode, *ast.AliasNode:
		return "", errors.New("anchors and aliases are not read here; write the value out")
	default:
		return "", fmt.Errorf("a value is expected, not %s", strings.ToLower(node.Type().YAMLName()))
	}
}

package settings

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a text. The parser's time grows with the square of the nesting,
// so that is looked at first; ours is seven deep.
const (
	// MaxBytes is the longest text that is read.
	MaxBytes = 8 << 20
	maxDepth = 24
)

type nodeKind int

const (
	scalar nodeKind = iota
	null
	truth
	mapping
	sequence
)

func (k nodeKind) String() string {
	return [...]string{"a value", "nothing", "true or false", "a mapping", "a list"}[k]
}

// node is one node of a text, freed of the parser that made it.
type node struct {
	kind nodeKind
	// text is a scalar's; quoted says that it cannot be taken for a number.
	text      string
	quoted    bool
	line, col int
	entries   []entry
	items     []*node
}

type entry struct {
	key       string
	line, col int
	value     *node
}

// child is the value of a key of a mapping, or nil.
func (n *node) child(key string) *node {
	if n == nil {
		return nil
	}
	for i := range n.entries {
		if n.entries[i].key == key {
			return n.entries[i].value
		}
	}
	return nil
}

// readTree reads YAML, of which JSON is a part.
func readTree(text []byte) (root *node, err error) {
	if len(text) > MaxBytes {
		return nil, Problems{{Reason: fmt.Sprintf("the text has %d bytes, more than the %d that are read at once; send the accounts in several writes", len(text), MaxBytes)}}
	}
	if i := invalidUTF8(text); i >= 0 {
		line := 1 + strings.Count(string(text[:i]), "\n")
		col := i - strings.LastIndexByte(string(text[:i]), '\n')
		return nil, Problems{{Line: line, Column: col, Reason: fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", text[i])}}
	}
	// The parser is not ours and the text is anybody's: a fault of the one is
	// a problem with the other, not the end of the process.
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, Problems{{Reason: fmt.Sprintf("the text is not readable as YAML (%v)", r)}}
		}
	}()
	tokens := lexer.Tokenize(string(text))
	if p, deep := tooDeep(tokens); deep {
		return nil, Problems{p}
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, Problems{syntaxProblem(err)}
	}
	var bodies []ast.Node
	for _, d := range file.Docs {
		if d.Body != nil {
			bodies = append(bodies, d.Body)
		}
	}
	switch {
	case len(bodies) == 0:
		return nil, Problems{{Reason: `the text is empty; it begins with "accounts:"`}}
	case len(bodies) > 1:
		at := bodies[1].GetToken().Position
		return nil, Problems{{Line: at.Line, Column: at.Column, Reason: `a second document ("---") begins; put all accounts in one`}}
	}
	return convert(bodies[0])
}

func invalidUTF8(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// tooDeep finds brackets, or dashes on one line, nested more than maxDepth.
func tooDeep(tokens token.Tokens) (Problem, bool) {
	flow, dashes, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType:
			if t.Position.Line != line {
				line, dashes = t.Position.Line, 0
			}
			dashes++
		}
		if flow > maxDepth || dashes > maxDepth {
			return Problem{Line: t.Position.Line, Column: t.Position.Column, Reason: fmt.Sprintf("nested more than %d deep", maxDepth)}, true
		}
	}
	return Problem{}, false
}

func syntaxProblem(err error) Problem {
	var se *yaml.SyntaxError
	if errors.As(err, &se) && se.Token != nil && se.Token.Position != nil {
		reason := se.Message
		if strings.Contains(reason, "already defined at [") {
			reason = strings.Replace(strings.Replace(reason, "[", "line ", 1), "]", "", 1)
			if i := strings.LastIndexByte(reason, ':'); i > 0 {
				reason = reason[:i]
			}
			reason += "; keep one of the two"
		}
		return Problem{Line: se.Token.Position.Line, Column: se.Token.Position.Column, Reason: reason}
	}
	return Problem{Reason: "the text is not readable as YAML: " + err.Error()}
}

func convert(n ast.Node) (*node, error) { return convertAt(n, 0) }

func convertAt(n ast.Node, depth int) (*node, error) {
	t := n.GetToken()
	out := &node{line: t.Position.Line, col: t.Position.Column}
	refuse := func(reason string) (*node, error) {
		return nil, Problems{{Line: out.line, Column: out.col, Reason: reason}}
	}
	if depth > maxDepth {
		return refuse(fmt.Sprintf("nested more than %d deep", maxDepth))
	}
	switch n := n.(type) {
	case *ast.StringNode:
		out.text = n.Value
		out.quoted = t.Type == token.DoubleQuoteType || t.Type == token.SingleQuoteType
	case *ast.LiteralNode:
		out.text, out.quoted = n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.text = t.Value
	case *ast.BoolNode:
		out.kind, out.text = truth, t.Value
	case *ast.NullNode:
		out.kind = null
	case *ast.MappingNode:
		out.kind = mapping
		for i, v := range n.Values {
			e, err := convertEntry(v, depth)
			if err != nil {
				return nil, err
			}
			if i == 0 && t.Type != token.MappingStartType {
				// The parser places a block mapping at its first colon.
				out.line, out.col = e.line, e.col
			}
			out.entries = append(out.entries, e)
		}
	case *ast.MappingValueNode:
		e, err := convertEntry(n, depth)
		if err != nil {
			return nil, err
		}
		out.kind, out.line, out.col, out.entries = mapping, e.line, e.col, []entry{e}
	case *ast.SequenceNode:
		out.kind = sequence
		for _, v := range n.Values {
			item, err := convertAt(v, depth+1)
			if err != nil {
				return nil, err
			}
			out.items = append(out.items, item)
		}
	case *ast.AnchorNode, *ast.AliasNode:
		return refuse("anchors and aliases (& and *) are not read here; write the value out")
	case *ast.TagNode:
		return refuse("tags (!) are not read here; put a text in quotes instead")
	default:
		return refuse(fmt.Sprintf("a %s cannot stand here", n.Type()))
	}
	return out, nil
}

func convertEntry(v *ast.MappingValueNode, depth int) (entry, error) {
	kt := v.Key.GetToken()
	e := entry{line: kt.Position.Line, col: kt.Position.Column}
	switch k := v.Key.(type) {
	case *ast.StringNode:
		e.key = k.Value
	case *ast.MergeKeyNode:
		return e, Problems{{Line: e.line, Column: e.col, Reason: "merge keys (<<) are not read here; write the fields out"}}
	default:
		e.key = kt.Value
	}
	var err error
	e.value, err = convertAt(v.Value, depth+1)
	return e, err
}

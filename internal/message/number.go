package message

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// number is an expression of numbers, as a tree.
type number struct {
	op          byte // one of the below, or + - * %
	constant    int64
	left, right *number
}

const (
	opConstant   = '0'
	opConnection = 'c'
	opMessage    = 'm'
)

// value calculates the number for a message.
func (n *number) value(of Of) int64 {
	switch n.op {
	case opConnection:
		return int64(of.Connection)
	case opMessage:
		return int64(of.Message)
	case '+':
		return n.left.value(of) + n.right.value(of)
	case '-':
		return n.left.value(of) - n.right.value(of)
	case '*':
		return n.left.value(of) * n.right.value(of)
	case '%':
		divisor := n.right.constant // above 0, see binary
		rest := n.left.value(of) % divisor
		if rest < 0 {
			rest += divisor
		}
		return rest
	}
	return n.constant
}

// variable is the operator of a name, 0 if it has none.
func variable(name string) byte {
	switch name {
	case "connection.uid":
		return opConnection
	case "message.uid", "seq":
		return opMessage
	}
	return 0
}

// parseNumberPiece reads an expression of numbers. One of constants is text.
func parseNumberPiece(body string) (piece, error) {
	p := numberParser{text: strings.TrimRight(body, blank)}
	n, err := p.sum()
	switch {
	case err != nil:
		return piece{}, err
	case p.at < len(p.text):
		return piece{}, p.wrong("+ - * % or the end")
	case n.op == opConstant:
		return piece{kind: kindText, text: strconv.AppendInt(nil, n.constant, 10)}, nil
	}
	return piece{kind: kindNumber, number: n}, nil
}

// numberParser reads an expression of numbers from left to right.
type numberParser struct {
	text             string
	at               int
	depth, operators int
}

// sum reads products with + and - between them.
func (p *numberParser) sum() (*number, error) {
	n, err := p.product()
	for err == nil && p.next("+-") {
		n, err = p.binary(n, p.product)
	}
	return n, err
}

// product reads operands with * and % between them.
func (p *numberParser) product() (*number, error) {
	n, err := p.operand()
	for err == nil && p.next("*%") {
		n, err = p.binary(n, p.operand)
	}
	return n, err
}

// next says whether one of the characters comes next, space aside.
func (p *numberParser) next(of string) bool {
	for p.at < len(p.text) && strings.IndexByte(blank, p.text[p.at]) >= 0 {
		p.at++
	}
	return p.at < len(p.text) && strings.IndexByte(of, p.text[p.at]) >= 0
}

// binary reads an operator and what is on its right.
func (p *numberParser) binary(left *number, operand func() (*number, error)) (*number, error) {
	n := &number{op: p.text[p.at], left: left}
	p.at++
	if p.operators++; p.operators > MaxOperators {
		return nil, fmt.Errorf("more than %d operators; expected at most that many", MaxOperators)
	}
	var err error
	if n.right, err = operand(); err != nil {
		return nil, err
	}
	if n.op == '%' && (n.right.op != opConstant || n.right.constant <= 0) {
		return nil, errors.New("remainder by something else than an integer above 0; expected such as connection.uid % 10")
	}
	if left.op == opConstant && n.right.op == opConstant {
		return &number{op: opConstant, constant: n.value(Of{})}, nil
	}
	return n, nil
}

// operand reads an integer, a name or what is in parentheses.
func (p *numberParser) operand() (*number, error) {
	switch {
	case p.next("("):
		return p.group()
	case p.next("-0123456789"):
		return p.integer()
	}
	name := p.text[p.at:]
	name = name[:nameLen(name)]
	op := variable(name)
	if op == 0 {
		return nil, p.wrong("connection.uid, message.uid, seq, an integer or (")
	}
	p.at += len(name)
	return &number{op: op}, nil
}

// group reads what is in parentheses.
func (p *numberParser) group() (*number, error) {
	if p.depth++; p.depth > MaxDepth {
		return nil, fmt.Errorf("more than %d parentheses in each other; expected at most that many", MaxDepth)
	}
	p.at++
	n, err := p.sum()
	if err != nil {
		return nil, err
	}
	if !p.next(")") {
		return nil, p.wrong(")")
	}
	p.at++
	p.depth--
	return n, nil
}

// integer reads an integer.
func (p *numberParser) integer() (*number, error) {
	end := p.at + 1
	for end < len(p.text) && p.text[end] >= '0' && p.text[end] <= '9' {
		end++
	}
	digits := p.text[p.at:end]
	constant, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("integer %q; expected one of 64 bits", shorten(digits))
	}
	p.at = end
	return &number{op: opConstant, constant: constant}, nil
}

// wrong is the error that something else is expected where the parser stands.
func (p *numberParser) wrong(expected string) error {
	if p.at == len(p.text) {
		return fmt.Errorf("nothing behind %q; expected %s", shorten(p.text), expected)
	}
	return fmt.Errorf("%q; expected %s", shorten(p.text[p.at:]), expected)
}

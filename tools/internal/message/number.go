package message

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
)

// number is an expression of numbers, as a tree.
type number struct {
	op          token.Token // INT, one of the two below, ADD, SUB, MUL or REM
	constant    int64
	left, right *number
}

// Operators that are variables.
const (
	connectionUID = -1 - token.Token(iota)
	messageUID
)

// value calculates the number for a message.
func (n *number) value(of Of) int64 {
	switch n.op {
	case connectionUID:
		return int64(of.Connection)
	case messageUID:
		return int64(of.Message)
	case token.ADD:
		return n.left.value(of) + n.right.value(of)
	case token.SUB:
		return n.left.value(of) - n.right.value(of)
	case token.MUL:
		return n.left.value(of) * n.right.value(of)
	case token.REM:
		divisor := n.right.constant // above 0, see binary
		rest := n.left.value(of) % divisor
		if rest < 0 {
			rest += divisor
		}
		return rest
	}
	return n.constant
}

// maxNumber is the longest expression of numbers, in bytes.
const maxNumber = 4096

// parseNumber reads an expression of numbers. One of constants is text.
func parseNumber(body string) (piece, error) {
	if len(body) > maxNumber {
		return piece{}, fmt.Errorf("an expression of %d bytes; expected at most %d", len(body), maxNumber)
	}
	e, err := parser.ParseExpr(body)
	if err != nil {
		return piece{}, errUnknown(body)
	}
	operators := 0
	n, err := numberOf(e, &operators)
	switch {
	case err != nil:
		return piece{}, err
	case n.op == token.INT:
		return piece{kind: kindText, text: strconv.AppendInt(nil, n.constant, 10)}, nil
	}
	return piece{kind: kindNumber, number: n}, nil
}

func numberOf(e ast.Expr, operators *int) (*number, error) {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return numberOf(e.X, operators)
	case *ast.BinaryExpr:
		return binary(e.Op, e.X, e.Y, operators)
	case *ast.UnaryExpr:
		if e.Op == token.SUB {
			return binary(token.SUB, &ast.BasicLit{Kind: token.INT, Value: "0"}, e.X, operators)
		}
	case *ast.BasicLit:
		constant, err := strconv.ParseInt(e.Value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("integer %s; expected one of 63 bits, in decimal digits", shorten(e.Value))
		}
		return &number{op: token.INT, constant: constant}, nil
	case *ast.Ident:
		if e.Name == "seq" {
			return &number{op: messageUID}, nil
		}
		return nil, errUnknown(e.Name)
	case *ast.SelectorExpr:
		of, _ := e.X.(*ast.Ident)
		switch {
		case of != nil && of.Name == "connection" && e.Sel.Name == "uid":
			return &number{op: connectionUID}, nil
		case of != nil && of.Name == "message" && e.Sel.Name == "uid":
			return &number{op: messageUID}, nil
		}
	}
	return nil, errors.New("not a number; expected integers, connection.uid, message.uid and seq with + - * % and ( )")
}

func binary(op token.Token, x, y ast.Expr, operators *int) (*number, error) {
	if *operators++; *operators > MaxOperators {
		return nil, fmt.Errorf("more than %d operators; expected at most that many", MaxOperators)
	}
	left, err := numberOf(x, operators)
	if err != nil {
		return nil, err
	}
	right, err := numberOf(y, operators)
	if err != nil {
		return nil, err
	}
	n := &number{op: op, left: left, right: right}
	switch {
	case op == token.REM && (right.op != token.INT || right.constant <= 0):
		return nil, errors.New("remainder by something else than an integer above 0; expected such as connection.uid % 10")
	case op != token.ADD && op != token.SUB && op != token.MUL && op != token.REM:
		return nil, fmt.Errorf("operator %s; expected + - * or %%", op)
	case left.op == token.INT && right.op == token.INT:
		return &number{op: token.INT, constant: n.value(Of{})}, nil
	}
	return n, nil
}

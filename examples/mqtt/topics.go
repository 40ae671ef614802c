package main

import (
	"strings"

	"github.com/myriad-go/myriad/tcp"
)

// topicNode is a level of the tree of filters. Its group contains the subscribers of the filter that ends here.
type topicNode struct {
	children    map[string]*topicNode
	subscribers tcp.Group
	count       int // of subscriptions; the group may still contain closed connections
}

func (n *topicNode) add(filter string, r tcp.Ref) {
	for level := range strings.SplitSeq(filter, "/") {
		child := n.children[level]
		if child == nil {
			child = new(topicNode)
			if n.children == nil {
				n.children = make(map[string]*topicNode)
			}
			n.children[level] = child
		}
		n = child
	}
	n.subscribers.Add(r)
	n.count++
}

// remove removes a subscription that add has added, and nodes that have become empty.
func (n *topicNode) remove(levels []string, r tcp.Ref) (empty bool) {
	if len(levels) == 0 {
		n.subscribers.Remove(r)
		n.count--
	} else if n.children[levels[0]].remove(levels[1:], r) {
		delete(n.children, levels[0])
	}
	return n.count == 0 && len(n.children) == 0
}

// visitMatches calls f for each filter that matches topic. Wildcards in the first level don't match topics that begin
// with $.
func (n *topicNode) visitMatches(topic string, f func(*tcp.Group)) {
	n.visit(strings.Split(topic, "/"), !strings.HasPrefix(topic, "$"), f)
}

func (n *topicNode) visit(levels []string, wildcards bool, f func(*tcp.Group)) {
	if child := n.children["#"]; child != nil && wildcards {
		f(&child.subscribers) // a/# also matches a
	}
	if len(levels) == 0 {
		if n.count > 0 {
			f(&n.subscribers)
		}
		return
	}
	if child := n.children[levels[0]]; child != nil {
		child.visit(levels[1:], true, f)
	}
	if child := n.children["+"]; child != nil && wildcards {
		child.visit(levels[1:], true, f)
	}
}

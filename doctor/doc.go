// Package doctor tells which wall of the operating system stops a number of TCP
// connections on this machine, before the night it happens, and how to move it.
//
// Read reads the machine into Facts, plain data. Examine predicts from Facts and
// a Plan, which says what is to be held, at how many connections each Wall stops
// it: a pure function, which can be asked of any machine whose Facts one has.
// What it predicts is held against real connections, in network namespaces with
// each wall set low, by this package's tests. Apply changes what can be changed
// on a running machine, Print writes what makes that last, and Watch follows a
// live server and warns before it meets a wall.
package doctor

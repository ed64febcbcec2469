// Command small is what the tests put into images in the place of other programs of Kip.
package main

import "k8s.io/utils/ptr"

func main() { println(*ptr.To("small")) }

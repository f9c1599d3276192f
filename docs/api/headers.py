"""A header's declarations as breathe directives, in the header's order, from Doxygen's XML.

Breathe's own doxygenfile documents a namespace once for each file, which Sphinx takes for an error.
"""

import pathlib
import re
import xml.etree.ElementTree as ElementTree

# How breathe calls what Doxygen calls.
DIRECTIVES = {"enum": "enum", "typedef": "typedef", "variable": "variable", "define": "define"}
LEFT_OUT = {"KDA_KDA_H", "KDA_API", "KDA_NOEXCEPT"}


def line_of(element):
    return int(element.find("location").get("line"))


def signature(member):
    types = ("".join(p.find("type").itertext()) for p in member.findall("param"))
    return f"({', '.join(types)})"


class Headers:
    """What Doxygen read of the headers of one project."""

    def __init__(self, project, root, xml):
        self.project = project
        self.root = root
        self.found = {}  # file -> [(line, directive, argument, with members)]
        for path in sorted(pathlib.Path(xml).glob("*.xml")):
            if path.name != "index.xml" and path.name != "Doxyfile.xml":
                self.read(ElementTree.parse(path).getroot().find("compounddef"))

    def add(self, element, directive, argument, members=False):
        file = element.find("location").get("file")
        self.found.setdefault(file, []).append((line_of(element), directive, argument, members))

    def read(self, compound):
        kind, name = compound.get("kind"), compound.find("compoundname").text
        if kind in ("struct", "class"):
            self.add(compound, kind, name, members=True)
        if kind not in ("file", "namespace"):
            return
        prefix = name + "::" if kind == "namespace" else ""
        for member in compound.iter("memberdef"):
            own = member.find("name").text
            if own in LEFT_OUT:
                continue
            if member.get("kind") == "function":
                with_types = signature(member) if self.project == "cpp" else ""
                self.add(member, "function", prefix + own + with_types)
            else:
                self.add(member, DIRECTIVES[member.get("kind")], prefix + own)

    def directive(self, kind, argument, options=()):
        lines = [f"```{{doxygen{kind}}} {argument}", f":project: {self.project}", *options, "```"]
        return "\n".join(lines) + "\n\n"

    def markdown(self, file):
        """The file's own comment, then each declaration; rulers of the file become headings."""
        sections = ":sections: briefdescription detaileddescription"
        text = self.directive("file", pathlib.Path(file).name, [sections])
        structs = {name for items in self.found.values() for _, kind, name, _ in items
                   if kind == "struct"}
        items = [(line, self.directive(kind, name, [":members:", ":undoc-members:"] * members))
                 for line, kind, name, members in self.found[file]
                 if kind != "typedef" or name not in structs]  # declared ahead
        for number, line in enumerate((self.root / file).read_text().splitlines(), 1):
            if ruler := re.match(r"// --- (\w.*?) -+$", line):
                items.append((number, f"## {ruler[1][0].upper()}{ruler[1][1:]}\n\n"))
        return text + "".join(item for _, item in sorted(items))
